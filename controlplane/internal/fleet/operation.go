package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Outcome is what came of an operation.
type Outcome struct {
	Result result.Result
	Stats  []byte // of operation stats, in JSON
	Leased *int64 // of a rule of scope cluster: what proxies hold of the key
}

// Operate does an operation on counters at the proxy that is named or whose turn it is. For a rule
// of scope cluster, the quota service does an operation on one key, and proxies say what they
// hold of the key: the one that is named, or all. The faults are those of a proxy.
func (p *Proxies) Operate(at At, o counters.Request, faults *sim.Faults) (*Outcome, error) {
	if counters.IsOfCluster(p.policy, o) {
		return p.operateCluster(at, o)
	}
	host, worker := p.choose(at)
	if o.Name == manage.Stats.Wire { // on a tick the other workers pass on what they have counted
		for other := range host.Workers() {
			if err := host.Tick(other); err != nil {
				return nil, err
			}
		}
	}
	asked := toOperation(o)
	asked.Faults = faults
	p.cluster.isCut = at.QuotaCut
	defer func() { p.cluster.isCut = false }()
	x, err := p.bring(host, worker, asked)
	if err != nil {
		return nil, err
	}
	response, err := x.Finish()
	if err != nil {
		return nil, err
	}
	return readOutcome(o, response)
}

func readOutcome(o counters.Request, response *sim.Response) (*Outcome, error) {
	if response.Status != http.StatusOK {
		var rejected struct{ Error string }
		if json.Unmarshal(response.Body, &rejected) != nil {
			rejected.Error = string(response.Body)
		}
		return nil, fmt.Errorf("op %s: %s", o.Name, rejected.Error)
	}
	if o.Name == manage.Stats.Wire {
		return &Outcome{Stats: response.Body}, nil
	}
	verdict, err := ReadVerdict(response.Body, response)
	return &Outcome{Result: verdict}, err
}

// operateCluster has the quota service do an operation.
func (p *Proxies) operateCluster(at At, o counters.Request) (*Outcome, error) {
	prepared, err := counters.Prepare(p.policy, o)
	if err != nil {
		return nil, fmt.Errorf("op %s: %w", o.Name, err)
	}
	done, err := prepared.Do(context.Background(), p.cluster.service)
	if err != nil {
		return nil, fmt.Errorf("op %s: %w", o.Name, err)
	}
	leased := int64(0)
	asked := counters.Request{Name: manage.Leased.Wire, Rule: o.Rule, Key: o.Key}
	for i, host := range p.hosts {
		if at.Proxy != nil && *at.Proxy != i {
			continue
		}
		response, err := host.Serve(0, toOperation(asked))
		if err != nil {
			return nil, err
		}
		answer, ok := manage.ReadAnswer(manage.Leased, response.Body)
		if !ok {
			return nil, fmt.Errorf("op %s: %s", asked.Name, response.Body)
		}
		leased += *answer.Value
	}
	return &Outcome{Result: done, Leased: &leased}, nil
}

// toOperation makes the request that has the filter do an operation.
func toOperation(o counters.Request) *sim.Request {
	query := url.Values{"rule": {o.Rule}, "key": o.Key, "limit": o.Limits}
	switch o.Name {
	case "hit", "peek", "inc", "set":
		query.Set("n", strconv.FormatUint(uint64(o.N), 10))
	}
	if o.Window != "" {
		query.Set("window", o.Window)
	}
	r := toManage("counters/" + o.Name)
	r.Path += "?" + query.Encode()
	return r
}

// Explain asks a proxy what the policy makes of a described request, as manage.RequestHeader has
// it. The answer is a result.Explanation in JSON.
func (p *Proxies) Explain(described string) ([]byte, error) {
	response, err := p.hosts[0].Serve(0, toManage("explain", [2]string{manage.RequestHeader, described}))
	if err != nil {
		return nil, err
	}
	if response.Status != http.StatusOK {
		return nil, fmt.Errorf("explain: %s", response.Body)
	}
	return response.Body, nil
}

// toManage is a request on the filter's management path.
func toManage(target string, headers ...[2]string) *sim.Request {
	return &sim.Request{
		Method: http.MethodPost, Path: path.Join(managePath, target),
		Headers: append([][2]string{{"authorization", "Bearer " + manageToken}}, headers...),
	}
}
