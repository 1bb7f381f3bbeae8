// Package access says who calls the control plane and what they may do: the
// roles of HTTP callers, by token or certificate, and the node ids that a proxy
// may use with its certificate.
//
// Its invariants: a caller without a role may do nothing, so a request from
// nobody known is refused. A certificate counts only by its DNS and URI SANs: a
// name of one kind never passes for one of another, and a name with a wildcard
// counts for nothing. The package holds digests, never tokens. It must never
// import the API, the xDS server, the store or the command line.
//
// access.go has the roles of callers, list.go reads the files that grant them, certificate.go finds
// the names of a certificate, and nodeids.go has the node ids.
package access

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Role is what a caller may do. A role includes those below it; the zero Role
// may do nothing.
type Role int

// The roles. Read sees everything but backups. Apply changes the policy. Admin
// also changes what the policy hands to others: its manage section, the path of
// the filter's binary, counters; and takes backups.
const (
	Read Role = iota + 1
	Apply
	Admin
)

var roleNames = []string{"none", "read", "apply", "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role's name.
func ParseRole(text string) (Role, error) {
	if i := slices.Index(roleNames, text); i > 0 {
		return Role(i), nil
	}
	return 0, fmt.Errorf("%q is not a role: give read, apply or admin", text)
}

// MarshalText makes a role its name in JSON.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a role's name in JSON.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRole(string(text))
	if string(text) == roleNames[0] {
		return nil
	}
	return err
}

// Caller makes a request.
type Caller struct {
	Name     string          // "token ci", "certificate spiffe://corp/ns/ops/sa/ci"; "" where anyone may call
	Role     Role            // with every policy
	Policies map[string]Role // with some, by name, where it is higher than Role
	Address  string          // the peer's IP address
}

// On is the caller's role with a policy.
func (c Caller) On(policy string) Role { return max(c.Role, c.Policies[policy]) }

// Anywhere is the caller's highest role with any policy.
func (c Caller) Anywhere() Role {
	return slices.Max(append(slices.Collect(maps.Values(c.Policies)), c.Role))
}

// ParseRoles reads a role for all policies, roles for some as POLICY:ROLE, or both,
// separated by commas.
func ParseRoles(text string) (all Role, policies map[string]Role, err error) {
	policies = map[string]Role{}
	for word := range strings.SplitSeq(text, ",") {
		name, of, forOne := strings.Cut(word, ":")
		if !forOne {
			name, of = "", word
		}
		role, err := ParseRole(of)
		switch {
		case err != nil:
			return 0, nil, err
		case forOne && !policy.IsPolicyName(name):
			return 0, nil, fmt.Errorf("%q is not the name of a policy: give a role with one as edge:apply", name)
		case policies[name] != 0:
			return 0, nil, fmt.Errorf("two roles for %s: give one", cmp.Or(name, "all policies"))
		}
		policies[name] = role
	}
	all = policies[""]
	delete(policies, "")
	if len(policies) == 0 {
		policies = nil
	}
	return all, policies, nil
}

// Anyone is the caller where no access file is given.
func Anyone(address string) Caller { return Caller{Role: Admin, Address: address} }

// Who is a caller's name as people read it: "anyone" where no access file is given.
func Who(name string) string { return cmp.Or(name, "anyone") }

type callerKey struct{}

// NewContext returns a context that carries the caller.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// FromContext returns the caller of a request; without one, a caller without a
// role.
func FromContext(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Gate finds the caller of a request: by its bearer token if it has one, else by
// the client certificate of its connection.
type Gate struct {
	List func() *List
	// ClientCAs vouch for certificates, again at each request. Nil: no certificate counts.
	ClientCAs func() *x509.CertPool
}

type digestKey struct{}

// WithToken returns a context whose requests bear the token with this digest. It is
// for requests that this process makes to itself, for a caller who showed the token.
func WithToken(ctx context.Context, d Digest) context.Context {
	return context.WithValue(ctx, digestKey{}, d)
}

// ShowsToken reports whether a request shows a token, be it a wrong one.
func ShowsToken(r *http.Request) bool {
	_, ok := r.Context().Value(digestKey{}).(Digest)
	return ok || len(r.Header.Values("Authorization")) > 0
}

// Identify returns the caller of a request, false for an unknown one.
func (g Gate) Identify(r *http.Request) (Caller, bool) {
	if d, ok := r.Context().Value(digestKey{}).(Digest); ok {
		c, known := g.List().tokens[d]
		return c, known
	}
	if given := r.Header.Values("Authorization"); len(given) > 0 {
		scheme, token, _ := strings.Cut(given[0], " ")
		if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
			return Caller{}, false
		}
		return g.List().Token(strings.TrimSpace(token))
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || g.ClientCAs == nil {
		return Caller{}, false
	}
	chain := r.TLS.PeerCertificates
	if Verify(chain, g.ClientCAs()) != nil {
		return Caller{}, false
	}
	return g.List().Certificate(chain[0])
}
