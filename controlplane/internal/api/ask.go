package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const noToken = "serve has no management token: start it with --manage-token-file"

// call begins a call of the connected proxies that a policy is for.
func (s *server) call(
	ctx context.Context, policy string, timeout time.Duration,
) (*manage.Call, []manage.Target, error) {
	if s.Fleet == nil {
		return nil, nil, refusal(http.StatusNotImplemented, noToken)
	}
	call, err := s.Fleet.Begin(timeout)
	if err != nil {
		return nil, nil, later("5", err)
	}
	targets, err := s.targets(ctx, policy)
	if err != nil {
		call.End()
		return nil, nil, err
	}
	return call, targets, nil
}

// managed are the connected proxies that a policy is for.
func (s *server) managed(policy string) []xds.Managed {
	return slices.DeleteFunc(s.XDS.Ledger().Managed(), func(m xds.Managed) bool { return m.Policy != policy })
}

// targets are these proxies, each with the path in the policy it runs.
func (s *server) targets(ctx context.Context, policy string) ([]manage.Target, error) {
	managed := s.managed(policy)
	proxies := make([]manage.Proxy, len(managed))
	for i, m := range managed {
		path, known := s.paths.Load(m.Runs)
		if !known && m.Runs > 0 {
			var err error
			switch path, err = s.managePath(ctx, m.Runs); {
			case errors.Is(err, store.ErrDamaged): // the proxy gets another revision soon
				proxies[i].Err = err
			case err != nil:
				return nil, err
			default:
				s.paths.Store(m.Runs, path)
			}
		}
		p := &proxies[i]
		p.Node, p.Revision = m.Node, m.Runs
		p.Address, p.Peer = m.Address, m.Peer
		p.Path, _ = path.(string)
	}
	return manage.Targets(proxies), nil
}

// managePath returns the path of a revision, empty if it answers no management
// requests.
func (s *server) managePath(ctx context.Context, number uint64) (string, error) {
	p, err := s.pushed(ctx, number)
	if err != nil || p == nil || p.Manage == nil {
		return "", err // a policy that this release cannot read names no path
	}
	return p.Manage.Path, nil
}

// pushed reads the policy of a revision as proxies get it, nil if this release cannot.
func (s *server) pushed(ctx context.Context, number uint64) (*policy.Policy, error) {
	revision, err := s.Store.Get(ctx, number)
	if err != nil {
		return nil, err
	}
	free, err := s.judging.take(ctx)
	if err != nil {
		return nil, err
	}
	defer free()
	doc, err := policy.ParseJSON(revision.JSON)
	if err != nil {
		return nil, nil //nolint:nilnil // it is damaged
	}
	p, problems := policy.Read(doc)
	if len(problems) > 0 {
		return nil, nil //nolint:nilnil // another release has accepted it
	}
	return p, nil
}
