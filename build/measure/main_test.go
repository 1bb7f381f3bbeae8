package main

import (
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// Tables and pictures are made from the figures that are kept beside them.
func TestPagesAgreeWithTheirFigures(t *testing.T) {
	docs := filepath.Join(buildtest.Root(), "docs")
	for _, read := range measuredPages {
		figures, err := read(docs)
		require.NoError(t, err)
		stale, err := figures.Stale(docs)
		require.NoError(t, err)
		require.Empty(t, stale, "make pages")
	}
}

func TestCountLines(t *testing.T) {
	code, tests, err := countLines(fstest.MapFS{
		"a.go":             {Data: []byte("// Package a.\npackage a\n\n/* x\n*/\nvar b = `\nraw\n` // end\n")},
		"x/a_test.go":      {Data: []byte("package a\n")},
		"build/out/big.go": {Data: []byte("package big\n")},
		"README.md":        {Data: []byte("words\n")},
	})
	require.NoError(t, err)
	require.Equal(t, []int{4, 1}, []int{code, tests})
}
