package main_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	policies "github.com/sluice-ratelimit/sluice/shared/policy"
)

var wasm = sync.OnceValue(func() []byte {
	file, err := os.CreateTemp("", "sluice-*.wasm")
	if err != nil {
		panic(err)
	}
	defer os.Remove(file.Name())
	if err := buildtest.Compile(buildtest.Root(), file.Name()); err != nil {
		panic(err)
	}
	b, err := os.ReadFile(file.Name())
	if err != nil {
		panic(err)
	}
	return b
})

// bench is one simulated proxy with the compiled filter in it.
type bench struct {
	*sim.Host
	now   int64
	mu    sync.Mutex
	log   []string
	calls []string // proxy-wasm host calls of workers
}

func start(t *testing.T, change ...func(*sim.Options)) *bench {
	t.Helper()
	b := &bench{now: 1_000_000_000_000_000_000}
	o := sim.Options{
		Wasm: wasm(), Workers: 1, VMID: "sluice", PluginName: "sluice", RootID: "sluice", Seed: 1,
		CacheDir: buildtest.CacheDir(), Now: func() int64 { return b.now },
		Log: func(level sim.Level, vm int, message string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.log = append(b.log, fmt.Sprintf("%s: %s", level, message))
		},
		OnCall: func(vm int, call string) {
			if vm >= 0 && strings.HasPrefix(call, "proxy_") {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.calls = append(b.calls, strings.TrimPrefix(call, "proxy_"))
			}
		},
	}
	for _, c := range change {
		c(&o)
	}
	h, err := sim.New(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	b.Host = h
	return b
}

func (b *bench) serve(t *testing.T, worker int, r *sim.Request) *sim.Response {
	t.Helper()
	b.calls = nil
	res, err := b.Serve(worker, r)
	require.NoError(t, err)
	return res
}

func policy(rules string) []byte { return []byte(`{"version":1,"rules":[` + rules + `]}`) }

var alice = &sim.Request{Headers: [][2]string{{"x-user-id", "alice"}}}

const perUser = `{"name":"per-user","key":[{"header":"x-user-id"}],"limits":["2/1h","9/1d"]}`

func TestRefusedPolicyWritesNothing(t *testing.T) {
	for _, bad := range []string{
		``, `{`, `[]`, `{"version":2,"rules":[]}`, `{"version":1,"rules":[],"flavor":"red"}`,
		`{"version":1,"rules":[{"name":"r","limits":["-1/1h"]}]}`,
		`{"version":1,"rules":[{"name":"r","limits":["1/0s"]}]}`,
		`{"version":1,"rules":[{"name":"r","limits":["1/1h"],"match":{"paths":["~("]}}]}`,
		"{\"version\":1,\"domain\":\"\xff\",\"rules\":[]}",
	} {
		b := start(t)
		var refused *sim.Refused
		require.ErrorAs(t, b.Configure([]byte(bad)), &refused, bad)
		require.Zero(t, b.Shared().Len(), bad)
		require.Contains(t, strings.Join(b.log, "\n"), "critical: sluice: ", bad)
	}
	b := start(t)
	require.NoError(t, b.Configure(policy(perUser)))
	require.Zero(t, b.Shared().Len(), "an unused policy writes nothing either")
	b.serve(t, 0, alice)
	before := b.Shared().Snapshot()
	require.Error(t, b.Configure([]byte(`{"version":1,"rules":[{"name":"other","limits":["x"]}]}`)))
	b.TickDue()
	require.Equal(t, before, b.Shared().Snapshot())
}

// The log says what to do if a policy is not JSON, or not in a StringValue.
func TestLogOfARefusedTextHelps(t *testing.T) {
	object, err := structpb.NewStruct(map[string]any{"version": 1, "rules": []any{}})
	require.NoError(t, err)
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(object)
	require.NoError(t, err)
	const hint = ": the filter reads JSON, not YAML, in a google.protobuf.StringValue: sluice render filter -f FILE " +
		"writes that"
	for text, want := range map[string]string{
		"version: 1\nrules: []\n":       "1:1: invalid_json",
		"\n\n  version: 1\n":            "3:3: invalid_json",
		string(wire):                    "2:1: invalid_json",
		"\n{\"version\":1,\x01}":        "2:14: invalid_json",
		`{"version":1,"rules":[{"a"}]}`: "1:27: invalid_json",
	} {
		b := start(t)
		require.Error(t, b.Configure([]byte(text)), text)
		require.Contains(t, strings.Join(b.log, "\n"), "critical: sluice: policy refused: "+want+hint, text)
	}
}

// A policy that needs calls which Envoy was told not to make is refused.
func TestCallsLeftOut(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.VMConfiguration = []byte("without proxy_on_response_headers") })
	require.NoError(t, b.Configure([]byte(`{"version":1}`)))
	require.Error(t, b.Configure([]byte(`{"version":1,"headers":"ietf"}`)))
	require.Contains(t, strings.Join(b.log, "\n"),
		"critical: sluice: policy refused: headers: ietf needs the callback proxy_on_response_headers, "+
			"which vm_config is without proxy_on_response_headers: render vm_config anew with this policy")
}

// A panic ends the VM, and with it the requests of its worker. Envoy answers them, and also a
// management request, because its token must not go upstream. The next VM finds the counters. A
// proxy without a clock makes the filter panic.
func TestAPanicEndsTheVM(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(hostilePolicy)))
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	for _, r := range []*sim.Request{
		{}, explainRequest(`{"headers":{"x-user-id":"alice"}}`),
		{
			Method:  "POST",
			Path:    "/.sluice/counters/peek?rule=alice&key=alice",
			Headers: [][2]string{{"authorization", "Bearer test"}},
		},
	} {
		r.Faults = &sim.Faults{Clock: true}
		require.Equal(t, 503, b.serve(t, 0, r).Status)
		require.ErrorContains(t, b.Failed(0), "vm failed in proxy_on_request_headers")
		b.now += 1e9
	}
	require.Contains(t, strings.Join(b.log, "\n"), "panic: the proxy has no clock")
	for _, want := range []int{200, 429} {
		require.Equal(t, want, b.serve(t, 0, alice).Status)
	}
}

// The log has the path and code of each problem of a refused policy, up to a
// bound.
func TestLogOfARefusedPolicy(t *testing.T) {
	for _, text := range []string{
		`{"version":1,"headers":"ieft","rules":[{"name":"r","limits":["10/fortnight"],"response":{"status":200,` +
			`"headers":{"x":"%RUEL%"}}}]}`,
		`{"version":1,"rules":[` + strings.TrimSuffix(strings.Repeat(`{"name":"r"},`, 60), ",") + `]}`,
	} {
		doc, err := policies.ParseJSON([]byte(text))
		require.NoError(t, err)
		_, problems := policies.ReadPushed(doc)
		b := start(t)
		require.Error(t, b.Configure([]byte(text)))
		var want []string
		for i := range problems {
			if i == 50 {
				want = append(want,
					fmt.Sprintf("critical: sluice: policy refused: and %d more problems: sluice validate prints them",
						len(problems)-50))
				break
			}
			require.Zero(t, problems[i].Line)
			want = append(want, "critical: sluice: policy refused: "+problems[i].Error())
		}
		require.Equal(t, want, b.log[:len(want)])
		require.NotContains(t, strings.Join(b.log[len(want):], "\n"), "policy refused")
	}
}
