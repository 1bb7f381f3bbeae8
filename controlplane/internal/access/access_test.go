package access

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
)

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func TestAListKnowsTokensByTheirDigests(t *testing.T) {
	l, err := ParseList("access", []byte("\ufeff# who may call\n\n token  ci apply "+digest("token of ci")+"\r\n"+
		"\ttoken watch read "+strings.ToUpper(digest("token of watch"))+"\n  # more\n"+
		"certificate ops.corp admin # a person\ncertificate spiffe://corp/ns/*/sa/ci apply"))
	require.NoError(t, err)
	c, known := l.Token("token of ci")
	require.True(t, known)
	require.Equal(t, Caller{Name: "token ci", Role: Apply}, c)
	c, known = l.Token("token of watch")
	require.True(t, known)
	require.Equal(t, Read, c.Role)
	for _, wrong := range []string{
		"", "token of c", "token of ci ", digest("token of ci"), strings.Repeat("x", MaxToken+1),
	} {
		c, known = l.Token(wrong)
		require.False(t, known)
		require.Zero(t, c.Role)
	}
	require.True(t, l.MapsCertificates())
	l, err = ParseList("access", nil)
	require.NoError(t, err, "an empty file lets nobody in")
	_, known = l.Token("")
	require.False(t, known)
	require.False(t, l.MapsCertificates())
}

// A caller may have a role with all policies, other roles with some, or these alone.
func TestRolesWithPolicies(t *testing.T) {
	text := "token ci read,edge:apply,core:admin " + digest("token of ci") + "\ncertificate ops.corp edge:read\n"
	l, err := ParseList("access", []byte(text))
	require.NoError(t, err)
	ci, _ := l.Token("token of ci")
	require.Equal(t, []Role{Apply, Admin, Read}, []Role{ci.On("edge"), ci.On("core"), ci.On("other")})
	require.Equal(t, Admin, ci.Anywhere())
	ops, known := l.Certificate(&x509.Certificate{DNSNames: []string{"ops.corp"}})
	require.True(t, known)
	require.Equal(t, "certificate ops.corp", ops.Name)
	require.Equal(t, []Role{Read, 0, Read}, []Role{ops.On("edge"), ops.On("core"), ops.Anywhere()})
}

func TestErrorsOfAnAccessFile(t *testing.T) {
	good := digest("a token of the test")
	for _, tc := range []struct{ text, want string }{
		{
			"tokn ci apply " + good,
			"f:1: neither token nor certificate: give token NAME ROLE SHA256HEX or certificate SAN ROLE",
		},
		{"token ci apply", "f:1: a token with 2 fields: give token NAME ROLE SHA256HEX or certificate SAN ROLE"},
		{"certificate ci.corp apply x", "f:1: a certificate with 3 fields"},
		{"token ci root " + good, `f:1: "root" is not a role: give read, apply or admin`},
		{"certificate ci.corp read,apply", "f:1: two roles for all policies: give one"},
		{"certificate ci.corp a:read,a:apply", "f:1: two roles for a: give one"},
		{"certificate ci.corp a:root", `f:1: "root" is not a role`},
		{"certificate ci.corp a*:read", `f:1: "a*" is not the name of a policy: give a role with one as edge:apply`},
		{"certificate ci.corp :read", `f:1: "" is not the name of a policy`},
		{"certificate ci.corp read,", `f:1: "" is not a role`},
		{"certificate ci.corp Admin", `f:1: "Admin" is not a role`},
		{
			"token ci apply s3cret",
			"f:1: token ci: SHA256HEX is not 64 hexadecimal digits: give what printf %s TOKEN | sha256sum prints",
		},
		{"token ci apply " + good + "00", "SHA256HEX is not"},
		{"token ci apply " + good[:62], "SHA256HEX is not"},
		{
			"token ci apply " + digest(""),
			"f:1: token ci: anyone would guess it, it is the digest of no text at all: make one with openssl rand -hex 32",
		},
		{"token ci apply " + digest("changeme"), "a common word"},
		{"token c\x1bi apply " + good, "f:1: a name that is not of up to 256 printable ASCII characters"},
		{"token " + strings.Repeat("x", 257) + " apply " + good, "a name that is not"},
		{
			"token ci apply " + good + "\n\ntoken ci read " + digest("another of the test"),
			"f:3: token ci is on line 1 already",
		},
		{
			"token ci apply " + good + "\ntoken cd read " + strings.ToUpper(good),
			"f:2: token cd has the digest of line 1: give each a token of its own",
		},
		{"certificate a.corp read\ncertificate A.corp admin", "f:2: certificate A.corp is on line 1 already"},
		{
			"certificate a..corp read",
			`f:1: certificate "a..corp": it is neither a DNS name nor a URI: ` +
				`give a DNS name such as ci.ops.corp or a URI such as spiffe://corp/ns/ops/sa/ci`,
		},
		{"certificate CN=ci read", "neither a DNS name nor a URI"},
		{"certificate spiffe:corp read", "neither a DNS name nor a URI"},
		{"certificate spiffe:///ns/a read", "not a URI of scheme, host and path"},
		{"certificate spiffe://corp/a?b read", "not a URI of scheme, host and path"},
		{"certificate spiffe://u@corp/a read", "not a URI of scheme, host and path"},
		{"certificate spiffe://*/a read", "* in the host of a URI: it may stand within a segment of the path only"},
		{"certificate spiffe://corp/*a* read", "two * in one segment: one is enough"},
		{"certificate *a*.corp read", "two * in one segment: one is enough"},
		{"certificate " + strings.Repeat("a.", 200) + "corp read", "it has 404 bytes, at most 256 are allowed"},
	} {
		_, err := ParseList("f", []byte(tc.text))
		require.ErrorContains(t, err, tc.want, tc.text)
		require.NotContains(t, err.Error(), "s3cret", "it may be a token")
	}
	_, err := ParseList("f", []byte("x\ntoken\n"))
	require.Len(t, strings.Split(err.Error(), "\n"), 2, "all at once")
}

func TestRolesIncludeThoseBelow(t *testing.T) {
	require.Less(t, Role(0), Read)
	require.Less(t, Read, Apply)
	require.Less(t, Apply, Admin)
	for _, role := range []Role{Read, Apply, Admin} {
		same, err := ParseRole(role.String())
		require.NoError(t, err)
		require.Equal(t, role, same)
	}
	text, err := json.Marshal(map[string]Role{"role": Apply})
	require.NoError(t, err)
	require.JSONEq(t, `{"role":"apply"}`, string(text))
	require.Equal(t, "none", Role(0).String())
	require.Zero(t, FromContext(t.Context()).Role)
}

func uri(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u
}

func TestCertificates(t *testing.T) {
	l, err := ParseList("access", []byte(`
certificate bob.ops.corp read
certificate *.ops.corp apply
certificate ci-*.corp apply
certificate spiffe://corp/ns/ops/sa/deployer admin
certificate spiffe://corp/ns/*/sa/watch-* read
`))
	require.NoError(t, err)
	dns := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.DNSNames = names }
	}
	spiffe := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = []*url.URL{uri(t, text)} }
	}
	const deployer, watcher = "spiffe://corp/ns/ops/sa/deployer", "spiffe://corp/ns/a/sa/watch-1"
	for name, tc := range map[string]struct {
		cert func(*x509.Certificate)
		want Caller
	}{
		"first line wins":       {dns("bob.ops.corp"), Caller{Name: "certificate bob.ops.corp", Role: Read}},
		"wildcard":              {dns("eve.ops.corp"), Caller{Name: "certificate eve.ops.corp", Role: Apply}},
		"upper case":            {dns("EVE.ops.CORP"), Caller{Name: "certificate eve.ops.corp", Role: Apply}},
		"second name":           {dns("x.corp", "ci-7.corp"), Caller{Name: "certificate ci-7.corp", Role: Apply}},
		"URI":                   {spiffe(deployer), Caller{Name: "certificate " + deployer, Role: Admin}},
		"URI by wildcards":      {spiffe(watcher), Caller{Name: "certificate " + watcher, Role: Read}},
		"two segments for one":  {dns("a.b.ops.corp"), Caller{}},
		"nothing for *":         {dns("ci-.corp"), Caller{}},
		"suffix":                {dns("eve.ops.corp.evil"), Caller{}},
		"no dot":                {dns("opsxcorp"), Caller{}},
		"wildcard SAN":          {dns("*.ops.corp"), Caller{}},
		"common name":           {func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "eve.ops.corp"} }, Caller{}},
		"e-mail":                {func(c *x509.Certificate) { c.EmailAddresses = []string{"eve.ops.corp"} }, Caller{}},
		"URI with a slash":      {spiffe("spiffe://corp/ns/a/b/sa/watch-1"), Caller{}},
		"URI with an escape":    {spiffe("spiffe://corp/ns/ops/sa%2Fdeployer"), Caller{}},
		"URI with a query":      {spiffe("spiffe://corp/ns/a/sa/watch-1?x"), Caller{}},
		"URI with a user":       {spiffe("spiffe://u@corp/ns/ops/sa/deployer"), Caller{}},
		"URI of another domain": {spiffe("spiffe://evil/ns/ops/sa/deployer"), Caller{}},
		"DNS name like a URI":   {spiffe("https://eve.ops.corp"), Caller{}},
		"URI as a DNS name":     {dns("spiffe://corp/ns/ops/sa/deployer"), Caller{}},
		"space in a DNS name":   {dns("a b.ops.corp"), Caller{}},
		"long":                  {dns(strings.Repeat("x", maxName) + ".ops.corp"), Caller{}},
		"none":                  {func(*x509.Certificate) {}, Caller{}},
	} {
		t.Run(name, func(t *testing.T) {
			var cert x509.Certificate
			tc.cert(&cert)
			c, known := l.Certificate(&cert)
			require.Equal(t, tc.want, c)
			require.Equal(t, tc.want.Role != 0, known)
		})
	}
}

func TestTheGateFindsTheCaller(t *testing.T) {
	ca, other := certtest.Issue(nil, nil), certtest.Issue(nil, nil)
	issue := func(by *tls.Certificate, more ...func(*x509.Certificate)) *tls.Certificate {
		return certtest.Issue(by, []string{"ops.corp"}, more...)
	}
	good := issue(ca)
	list, err := ParseList("access", []byte("certificate ops.corp admin\ntoken ci apply "+digest("token of ci")+"\n"))
	require.NoError(t, err)
	roots := certtest.Pool(ca)
	gate := Gate{List: func() *List { return list }, ClientCAs: func() *x509.CertPool { return roots }}
	role := func(header string, certs ...*tls.Certificate) Role {
		r := httptest.NewRequest(http.MethodGet, "https://localhost/", http.NoBody)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		for _, c := range certs {
			r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, c.Leaf)
		}
		c, known := gate.Identify(r)
		require.Equal(t, c.Role != 0, known)
		return c.Role
	}
	require.Equal(t, Apply, role("Bearer token of ci"))
	require.Equal(t, Apply, role("bearer  token of ci"))
	require.Equal(t, Admin, role("", good))
	require.Equal(t, Apply, role("Bearer token of ci", good), "a token says who it is")
	require.Zero(t, role("Bearer wrong", good), "a wrong token is not made good by a certificate")
	require.Zero(t, role("Basic token of ci", good))
	require.Zero(t, role(""))
	twice := httptest.NewRequest(http.MethodGet, "https://localhost/", http.NoBody)
	twice.Header["Authorization"] = []string{"Bearer token of ci", "Bearer wrong"}
	_, known := gate.Identify(twice)
	require.False(t, known, "whoever looks at the other one judges otherwise")
	require.Zero(t, role("", issue(other)))
	require.Zero(t, role("", issue(ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })),
		"a connection may outlive its certificate")
	ofServer := issue(ca, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	require.Zero(t, role("", ofServer))
	middle := issue(ca, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign })
	require.Zero(t, role("", issue(middle)))
	require.Equal(t, Admin, role("", issue(middle), middle))

	roots = x509.NewCertPool()
	require.Zero(t, role("", good), "the authority is trusted no more")
	gate.ClientCAs = nil
	require.Zero(t, role("", good))
}
