package policytest_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
)

// Alice is denied at her fourth request in a minute, and allowed when the minute is over.
func Example() {
	t := new(testing.T) // is the test's

	filter, err := os.ReadFile("sluice.wasm") // of a release
	if err != nil {
		t.Fatal(err)
	}
	p := policytest.New(t, policytest.Options{Wasm: filter, Policy: "policy.yaml"})
	alice := policytest.Request{Path: "/v1/orders", Header: http.Header{"X-User-Id": {"alice"}}}
	for range 3 {
		p.Do(alice)
	}
	if v := p.Do(alice); v.Allowed || v.DeniedBy != "per-user" || v.RetryAfter != time.Minute {
		t.Errorf("the fourth request: %+v", v)
	}
	p.Advance(time.Minute)
	if v := p.Do(alice); !v.Allowed {
		t.Errorf("a minute later: %+v", v)
	}
}
