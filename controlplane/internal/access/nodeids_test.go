package access

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func certificateOf(t *testing.T, sans ...string) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "common"}}
	for _, san := range sans {
		if !strings.Contains(san, ":") {
			c.DNSNames = append(c.DNSNames, san)
			continue
		}
		uri, err := url.Parse(san)
		require.NoError(t, err)
		c.URIs = append(c.URIs, uri)
	}
	return c
}

func TestNodeIDs(t *testing.T) {
	const spiffe = "spiffe://corp/ns/edge/sa/envoy"
	for _, tc := range []struct {
		name, rules string
		sans        []string
		id, want    string // "" = refused
	}{
		{"the name itself", "", []string{"edge-1.corp"}, "edge-1.corp", "edge-1.corp"},
		{"a URI", "", []string{"a", spiffe}, spiffe, spiffe},
		{"another name", "", []string{"edge-9"}, "edge-1", ""},
		{"case differs", "", []string{"Edge-1"}, "edge-1", ""},
		{"common name", "", nil, "common", ""},
		{"wildcard as id", "", []string{"*.corp"}, "*.corp", ""},
		{"wildcard covers", "{id}.corp {id}", []string{"*.corp"}, "*", ""},
		{"same text", "{id}.edge.corp {id}", []string{"edge-1.edge.corp"}, "edge-1", "edge-1.edge.corp"},
		{"other text", "{id}.edge.corp {id}", []string{"edge-9.edge.corp"}, "edge-1", ""},
		{"text of two segments", "{id}.edge.corp {id}", []string{"a.b.edge.corp"}, "a.b", ""},
		{
			"name itself, beside rules", "{id}.edge.corp {id}",
			[]string{"edge-1.edge.corp"}, "edge-1.edge.corp", "edge-1.edge.corp",
		},
		{"any id of a shared name", spiffe + " edge-*", []string{spiffe}, "edge-1", spiffe},
		{"* is not empty", spiffe + " edge-*", []string{spiffe}, "edge-", ""},
		{"* ends at a dot", spiffe + " edge-*", []string{spiffe}, "edge-1.other", ""},
		{"* ends at a slash", spiffe + " edge-*", []string{spiffe}, "edge-1/other", ""},
		{"a dot is a dot", "a.corp x", []string{"axcorp"}, "x", ""},
		{"all of it", "a.corp x", []string{"a.corp.evil"}, "x", ""},
		{"prefix and suffix", "node-{id}-x.corp {id}", []string{"node-7-x.corp"}, "7", "node-7-x.corp"},
		{
			"beside a star in another segment", "{id}.*.corp sidecar~{id}.*",
			[]string{"a.eu.corp"}, "sidecar~a.us", "a.eu.corp",
		},
		{
			"a dot within a segment of a URI", "spiffe://corp/ns/*/sa/{id} {id}",
			[]string{"spiffe://corp/ns/eu.a/sa/edge-1"}, "edge-1", "spiffe://corp/ns/eu.a/sa/edge-1",
		},
		{"{id} is one segment of an id", "spiffe://corp/{id} {id}", []string{"spiffe://corp/a.b"}, "a.b", ""},
		{"no URI for a DNS pattern", "* x", []string{"urn:a"}, "x", ""},
		{"second line, second name", "x y\n{id}.b {id}", []string{"n", "e.b"}, "e", "e.b"},
		{
			"byte order mark, line end of Windows", "\ufeff{id}.corp {id}\r\n",
			[]string{"edge-1.corp"}, "edge-1", "edge-1.corp",
		},
		{"longer than any", "", []string{strings.Repeat("a", MaxNodeID+1)}, strings.Repeat("a", MaxNodeID+1), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ParseNodeIDs("names", []byte(tc.rules))
			require.NoError(t, err)
			got, err := r.SAN(certificateOf(t, tc.sans...), tc.id)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.want == "", err != nil)
		})
	}
}

// An authority that signs DNS names without looking has signed no URI.
func TestURIAsDNSName(t *testing.T) {
	const spiffe = "spiffe://corp/ns/edge/sa/envoy"
	r, err := ParseNodeIDs("names", []byte(spiffe+" edge-*"))
	require.NoError(t, err)
	for _, id := range []string{spiffe, "edge-1"} {
		_, err = r.SAN(&x509.Certificate{DNSNames: []string{spiffe}}, id)
		require.Error(t, err, id)
	}
}

// The error lists what the certificate may use.
func TestARefusalSaysWhatIsGranted(t *testing.T) {
	r, err := ParseNodeIDs("names", []byte("{id}.edge.corp {id}\n*.edge.corp spare-*\n"))
	require.NoError(t, err)
	_, err = r.SAN(certificateOf(t, "edge-9.edge.corp", "*.corp"), "edge-1")
	require.EqualError(t, err, `node id "edge-1" is not granted by its certificate, `+
		`which grants edge-9 or edge-9.edge.corp or spare-*: `+
		`set node.id to that, or write "edge-9.edge.corp edge-1" into the file of serve --node-names`)
	_, err = r.SAN(certificateOf(t, "*.corp"), "edge-1")
	require.EqualError(t, err, `node id "edge-1" is not in its certificate, `+
		`which has no DNS or URI name without a wildcard: issue one with the SAN "edge-1"`)
	_, err = r.SAN(certificateOf(t, "a", "b", "c", "d", "e", "f", "g"), "x")
	require.ErrorContains(t, err, "a or b or c or d or e or one of 2 others")
}

func TestNodeIDErrors(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"one", `names:1: 1 words instead of 2: write SAN ID, for example {id}.edge.corp {id}`},
		{"# fine\n\n a b # c\na b c", `names:4: 3 words instead of 2: write SAN ID, for example {id}.edge.corp {id}`},
		{"{id}.corp edge-*", `names:1: {id} is on one side only: write it on both, or * where any text will do`},
		{"{id}.{id} {id}", `names:1: SAN "{id}.{id}": {id} is there twice: write * where the text may differ`},
		{"{node}.corp x", `names:1: SAN "{node}.corp": the only word in braces is {id}`},
		{"spiffe://*/a x", `names:1: SAN "spiffe://*/a": * in the host of a URI`},
		{"spiffe://{id}/a {id}", `names:1: SAN "spiffe://{id}/a": {id} in the host of a URI`},
		{
			"spiffe://corp/{id}.* {id}",
			`{id} and * are in one segment, so what {id} stands for is not clear: separate them by "/"`,
		},
		{"a **", `names:1: id "**": two * in one segment: one is enough`},
		{
			"*-{id}.corp {id}",
			`names:1: SAN "*-{id}.corp": {id} and * are in one segment, so what {id} stands for is not clear: ` +
				`separate them by "."`,
		},
		{"b\xc3\xbccher.corp edge", `names:1: SAN "bücher.corp": only visible ASCII, ! to ~, can match`},
		{"a\x01 b", `names:1: SAN "a\x01": only visible ASCII, ! to ~, can match`},
		{"a " + strings.Repeat("b", MaxNodeID+1), `at most 1024 are allowed`},
		{strings.Repeat("a b\n", maxLines+1), `names: 10001 lines, at most 10000 are allowed`},
	} {
		_, err := ParseNodeIDs("names", []byte(tc.text))
		require.ErrorContains(t, err, tc.want)
	}
	_, err := ParseNodeIDs("names", []byte(strings.Repeat("x\n", 100)))
	require.Equal(t, maxListed, strings.Count(err.Error(), "names:"))
}

func TestCheckNodeID(t *testing.T) {
	require.NoError(t, CheckNodeID("sidecar~10.0.0.1~a.b~b.svc.cluster.local"))
	for id, want := range map[string]string{
		"": "node.id", strings.Repeat("x", MaxNodeID+1): "at most 1024", "a\x1b[31m": "visible ASCII",
		"edge 1": "visible", "\u0435dge-1": "visible", "\xff": "visible", "a\x00b": "visible",
	} {
		require.ErrorContains(t, CheckNodeID(id), want)
	}
}
