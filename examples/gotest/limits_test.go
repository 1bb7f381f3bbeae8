// Tests of policy.yaml. They need sluice.wasm beside them, the filter of a release.
package limits

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
)

func options(t *testing.T) policytest.Options {
	t.Helper()
	filter, err := os.ReadFile("sluice.wasm")
	if err != nil {
		t.Fatal(err)
	}
	return policytest.Options{Wasm: filter, Policy: "policy.yaml"}
}

// Each user has three requests a minute.
func TestPerUser(t *testing.T) {
	p := policytest.New(t, options(t))
	alice := policytest.Request{Path: "/v1/orders", Header: http.Header{"X-User-Id": {"alice"}}}
	for range 3 {
		if v := p.Do(alice); !v.Allowed {
			t.Fatalf("denied by %s: %s", v.DeniedBy, v.Reason)
		}
	}
	v := p.Do(alice)
	if v.Status != http.StatusTooManyRequests || v.DeniedBy != "per-user" || v.RetryAfter != time.Minute {
		t.Errorf("status %d, denied by %q, retry after %s", v.Status, v.DeniedBy, v.RetryAfter)
	}
	p.Advance(v.RetryAfter)
	if v := p.Do(alice); !v.Allowed || v.Rule("per-user").Remaining != 2 {
		t.Errorf("a minute later: %+v", v)
	}
}

// Only failed logins count, and an address has five in a quarter of an hour.
func TestFailedLogins(t *testing.T) {
	p := policytest.New(t, options(t))
	login := func(status int) *policytest.Verdict {
		return p.Do(policytest.Request{
			Method: http.MethodPost, Path: "/login", ClientIP: "192.0.2.7", Answer: &policytest.Answer{Status: status},
		})
	}
	for range 10 {
		login(http.StatusOK)
	}
	for range 5 {
		login(http.StatusUnauthorized)
	}
	if v := login(http.StatusOK); v.Allowed {
		t.Error("the sixth login after five that failed was allowed")
	}
	key := policytest.Counter{Rule: "failed-logins", Key: []string{"192.0.2.7"}}
	if used := p.Count(key).Used; used != 5 {
		t.Errorf("%d failed logins are counted", used)
	}
	p.Reset(key)
	if v := login(http.StatusOK); !v.Allowed {
		t.Error("denied after a reset")
	}
}

// A tenant's tokens are counted over all proxies, and what an answer really cost is charged.
func TestTokens(t *testing.T) {
	o := options(t)
	o.Proxies = 2
	p := policytest.New(t, o)
	usage := map[string]int{"prompt_tokens": 900, "completion_tokens": 300}
	ask := policytest.Request{
		Method: http.MethodPost, Path: "/v1/chat/completions",
		JWT:    map[string]map[string]any{"corp": {"tenant": "acme"}},
		Answer: &policytest.Answer{JSON: map[string]any{"usage": usage}},
	}
	v := p.Do(ask)
	if tokens := v.Rule("tokens"); tokens.Held != 2000 || tokens.Charged != 1200 {
		t.Errorf("held %d, charged %d", tokens.Held, tokens.Charged)
	}
	// Four requests that run hold 8,000 of the 8,800 that are left.
	var running []*policytest.Running
	for range 4 {
		running = append(running, p.Start(ask))
	}
	if v := p.Do(ask); v.Allowed || v.Reason != "held" {
		t.Errorf("a fifth request at once: allowed %t, reason %q", v.Allowed, v.Reason)
	}
	p.Advance(2 * time.Second)
	for _, r := range running {
		p.Answer(r, *ask.Answer)
	}
	if used := p.Count(policytest.Counter{Rule: "tokens", Key: []string{"acme"}}).Used; used != 5*1200 {
		t.Errorf("%d tokens are counted", used)
	}
}

// Real HTTP requests, in front of the program's own handler.
func TestBehindHTTP(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	address := policytest.Serve(t, options(t), handler)
	var last int
	for range 6 {
		response, err := http.Post(address+"/login", "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		last = response.StatusCode
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the sixth failed login got %d", last)
	}
}
