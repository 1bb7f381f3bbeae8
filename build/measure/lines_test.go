package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

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
