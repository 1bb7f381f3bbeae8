package buildtest

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// ModelAnswer is an answer of a model's API, and what is to be read of it.
type ModelAnswer struct {
	Name, ContentType, Body string

	Input, Output           int64
	InputKnown, OutputKnown bool
	TextEvents, TextBytes   int64
}

// ModelAnswers are those on which the filter's scanner is tested.
func ModelAnswers(t testing.TB) (list []ModelAnswer) {
	all, err := txtar.ParseFile(filepath.Join(Root(), "filter/internal/usage/testdata/answers.txtar"))
	require.NoError(t, err)
	for _, f := range all.Files {
		head := strings.Split(f.Name, " | ")
		a := ModelAnswer{Name: head[0], ContentType: head[1], Body: string(f.Data)}
		counts := strings.ReplaceAll(head[2], "?", "")
		_, err := fmt.Sscan(counts+" "+head[3], &a.Input, &a.Output, &a.TextEvents, &a.TextBytes)
		require.NoError(t, err)
		input, output, _ := strings.Cut(head[2], " ")
		a.InputKnown, a.OutputKnown = !strings.HasSuffix(input, "?"), !strings.HasSuffix(output, "?")
		switch a.ContentType {
		case "application/json":
			a.Body = strings.TrimSuffix(a.Body, "\n")
		case "application/vnd.amazon.eventstream":
			frames, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Body))
			require.NoError(t, err)
			a.Body = string(frames)
		}
		list = append(list, a)
	}
	require.Greater(t, len(list), 20)
	return list
}
