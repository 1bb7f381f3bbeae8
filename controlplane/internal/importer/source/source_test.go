package source

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each resource of a file has a place of its own, also those in a List of Kubernetes.
func TestResourcesHaveTheirPlaces(t *testing.T) {
	for text, want := range map[string][]string{
		"{kind: A}":                          {"A f:"},
		"kind: A\n---\n# none\n---\nkind: B": {"A f:[0]", "B f:[1]"},
		"{kind: List, items: [{kind: A}]}":   {"A f:items[0]"},
		"kind: A\n---\n{kind: List, items: [{kind: B}, {kind: C}]}": {
			"A f:[0]", "B f:[1].items[0]", "C f:[1].items[1]",
		},
		"{kind: List, items: []}": nil,
		"{kind: List}":            {"List f:"},
	} {
		in, err := Open(File{Name: "f", Text: []byte(text)})
		require.NoError(t, err, text)
		var got []string
		for _, r := range in.Resources() {
			got = append(got, TextOf(r.Node, "kind")+" "+r.At.File+":"+r.At.Path)
		}
		require.Equal(t, want, got, text)
	}
}

// Blank documents do not count, such as the one before a --- at the begin of the file, as Helm writes it.
func TestDocumentsAreCounted(t *testing.T) {
	for documents, want := range map[string]int{
		strings.Repeat("---\nkind: A\n", 100): 100, strings.Repeat("---\n", 100_000) + "kind: A": 1,
	} {
		in, err := Open(File{Name: "f", Text: []byte(documents)})
		require.NoError(t, err)
		require.Len(t, in.Resources(), want)
	}
	_, err := Open(File{Name: "f", Text: []byte(strings.Repeat("kind: A\n---\n", 101))})
	require.ErrorContains(t, err, "f: there are more than 100 documents")
}

// The lines of a document are those of its file.
func TestErrorsHaveTheLineOfTheFile(t *testing.T) {
	_, err := Open(File{Name: "f", Text: []byte("a: 1\n---\nb: [\n")})
	require.ErrorContains(t, err, "f:3: ")
	_, err = Open(File{Name: "f", Text: []byte("# nothing\n---\n")})
	require.ErrorContains(t, err, "f: the file is empty")
	_, err = Open(File{Name: "f", Text: []byte("text")})
	require.ErrorContains(t, err, "f: must be an object")
}

// A field is found by either name, and one that is null is absent.
func TestFieldsHaveTwoNames(t *testing.T) {
	in, err := Open(File{Text: []byte("{rate_limits: [{a: 1}], virtualHosts: {nameOf: x}, kind: null}")})
	require.NoError(t, err)
	require.Len(t, ItemsOf(in.Root, "rate_limits"), 1)
	require.Equal(t, "x", TextOf(in.Root, "virtual_hosts", "name_of"))
	require.Nil(t, FieldOf(in.Root, "kind"))
	require.Nil(t, FieldOf(in.Root, "virtual_hosts", "name_of", "more"))
	for written, want := range map[string]bool{
		"rate_limits": true, "rateLimits": true, "RateLimits": true, "Rate_Limits": false, "rate-limits": false,
	} {
		require.Equal(t, want, IsField(written, "rate_limits"), written)
	}
}
