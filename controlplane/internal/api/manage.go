package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// Management answers GET /v1/manage: where the connected proxies answer
// management requests. The control plane never makes one: it knows the digest
// of the token and not the token.
type Management struct {
	Proxies []ManagedProxy `json:"proxies"`
}

// ManagedProxy has either a URL or a Problem.
type ManagedProxy struct {
	Node     string `json:"node"`
	Revision uint64 `json:"revision,omitempty"` // what it runs
	URL      string `json:"url,omitempty"`      // with the path of the policy it runs
	Problem  string `json:"problem,omitempty"`  // why it cannot be asked
	Hint     string `json:"hint,omitempty"`     // what to do about that
}

// manage handles GET /v1/manage.
func (s *server) manage(w http.ResponseWriter, r *http.Request) {
	m := Management{Proxies: []ManagedProxy{}}
	paths := map[uint64]string{} // of the revisions that are run
	owners := map[string]string{}
	for _, proxy := range s.xds.Ledger().Managed() {
		p := ManagedProxy{Node: proxy.Node, Revision: proxy.Runs}
		path, known := paths[proxy.Runs]
		if !known && proxy.Runs > 0 {
			var err error
			if path, err = s.managePath(r.Context(), proxy.Runs); err != nil {
				s.failStore(w, r, err)
				return
			}
			paths[proxy.Runs] = path
		}
		scheme, host, err := manageHost(proxy)
		switch owner := owners[host]; {
		case err != nil:
			p.fail(err)
		case proxy.Runs == 0:
			p.fail(errNothingRun)
		case path == "":
			p.fail(errNoManage)
		case owner != "":
			// Two on one machine cannot both listen there, and asking one of them
			// twice would count twice.
			p.Problem = fmt.Sprintf("its management address %s is also that of %s", proxy.Address, owner)
			p.Hint = "give each proxy a management address of its own, one that can be reached from here"
		default:
			owners[host] = p.Node
			p.URL = (&url.URL{Scheme: scheme, Host: host, Path: path}).String()
		}
		m.Proxies = append(m.Proxies, p)
	}
	answer(w, http.StatusOK, m)
}

// advice is an error with what to do about it.
type advice struct{ text, hint string }

func (a *advice) Error() string { return a.text }

var (
	errNoAddress = &advice{
		"it has told no management address",
		"sluice render envoy --manage IP:PORT gives it a listener and tells the address; else set sluice: {manage: IP:PORT} in the node's metadata",
	}
	errNothingRun = &advice{"it has not accepted a policy from here yet", "sluice status shows what it runs"}
	errNoManage   = &advice{
		"the policy it runs has no manage, so it answers no management requests",
		`add manage: {path: /.sluice/, token_sha256: "…"} to the policy and apply it`,
	}
)

func (p *ManagedProxy) fail(err error) {
	p.Problem = err.Error()
	var a *advice
	if errors.As(err, &a) {
		p.Hint = a.hint
	}
}

// manageHost returns the scheme and the address with which to ask a proxy. One
// that listens on all addresses is asked at the one it is connected from.
func manageHost(p xds.Managed) (scheme, address string, err error) {
	if p.Address == "" {
		return "", "", errNoAddress
	}
	scheme, address = "http", p.Address
	if rest, secure := strings.CutPrefix(address, "https://"); secure {
		scheme, address = "https", rest
	}
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || number == 0 || strings.ContainsAny(host, "/?#@ ") {
		return "", "", &advice{
			fmt.Sprintf("its management address %q is not IP:PORT", p.Address),
			"sluice.manage in the node's metadata names it: IP:PORT, or https://HOST:PORT where TLS ends in front of it",
		}
	}
	from, _, _ := net.SplitHostPort(p.Peer)
	peer, _ := netip.ParseAddr(from)
	listens, _ := netip.ParseAddr(host) // a name is for whoever asks to resolve
	switch {
	case host == "" || listens.IsUnspecified():
		return scheme, net.JoinHostPort(cmp.Or(from, host), port), nil
	case (host == "localhost" || listens.Unmap().IsLoopback()) && peer.IsValid() && !peer.Unmap().IsLoopback():
		return "", "", &advice{
			fmt.Sprintf("its management address %s is of loopback on its own machine", p.Address),
			"ask it there, with --proxy, or give it a management address that can be reached",
		}
	}
	return scheme, address, nil
}

// managePath returns the path of a revision, empty if it answers no management
// requests.
func (s *server) managePath(ctx context.Context, number uint64) (string, error) {
	revision, err := s.store.Get(ctx, number)
	if err != nil {
		return "", err
	}
	free, err := s.judging.take(ctx)
	if err != nil {
		return "", err
	}
	defer free()
	p, _, _, err := policyfile.Read(revision.File, revision.YAML)
	if err != nil || p.Manage == nil {
		return "", nil //nolint:nilerr // a policy that is no longer valid here has nothing to tell
	}
	return p.Manage.Path, nil
}
