package e2e

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// withoutBodies waits for answers and reads none.
	withoutBodies = `
version: 1
` + managed + `rules:
  - {name: counted, match: {paths: [/edges]}, key: [{header: x-user-id}], limits: [100/` + far + `], settle: {}}
  - {name: in-flight, match: {paths: [/flight, /flight/*]}, algorithm: concurrency, limits: [10], hold: 10s}
`
	withBodies = withoutBodies + `  - {name: tokens, match: {paths: [/edges]}, key: [{header: x-user-id}], limits: [1000/` + far + `], cost: 10, settle: {to: tokens}}
`
	usageOf34 = `200 {"usage":{"prompt_tokens":30,"completion_tokens":4}}`
)

// TestPushedBodies: answers are read from the push on of a policy that needs them, and until
// one that does not; counters stay, and what a policy held is charged as it says.
func TestPushedBodies(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		control := startControlPlane(t)
		r := newAnswerRig(t, d, proxyOptions{node: "edge", xds: control.xds})
		control.awaitConnected(t, "edge")
		r.pushes(t, control)
		r.pushesUnderLoad(t, control)
		r.noTraps(t)
	})
}

// answer asks for 34 tokens, and returns the encodings that the upstream was told of.
func (r *answerRig) answer(t *testing.T, id string) (accepted string) {
	res, body := r.get(t, "/edges", "x-do", usageOf34, "x-id", id, "x-send", "content-type: application/json", "accept-encoding", "gzip", "x-user-id", "u")
	require.Equal(t, usageOf34[len("200 "):], body)
	return res.Header.Get("x-accepted")
}

var lacksBodies = regexp.MustCompile(`"without [^"]*proxy_on_response_body`)

func (r *answerRig) pushes(t *testing.T, control *controlPlane) {
	begin := func() (end func()) { // a request that is at the upstream until then
		arrived, over, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		undo := r.upstream.onArrival("held", func() {
			close(arrived)
			<-over
		})
		go func() {
			defer close(done)
			r.answer(t, "held") //nolint:testifylint // a failure ends this goroutine, and the test sees it
		}()
		<-arrived
		undo()
		return func() { close(over); <-done }
	}
	requireCharged := func(rule string, n int64) { require.Equal(t, n, used(t, r.proxy, rule+"&key=u"), rule) }
	counted, tokens := int64(0), int64(0)
	during := func() {} // ends what the policy before has begun
	for _, step := range []struct {
		policy   string
		reads    bool
		accepted string
	}{{withoutBodies, false, "gzip"}, {withBodies, true, ""}, {withoutBodies, false, "gzip"}, {withBodies, true, ""}} {
		control.apply(t, step.policy)
		dump, err := r.envoy.Get(t.Context(), "/config_dump?resource=ecds_filters")
		require.NoError(t, err)
		require.Equal(t, step.reads, !lacksBodies.Match(dump), "%s", dump)
		require.Equal(t, step.accepted, r.answer(t, ""))
		during()
		if counted++; step.reads {
			tokens += 34
		}
		requireCharged("counted", counted)
		if step.reads {
			requireCharged("tokens", tokens)
			tokens += 34 // of what is begun now
		}
		counted++
		during = begin()
	}
	during()
	requireCharged("counted", counted)
	requireCharged("tokens", tokens)
}

func (r *answerRig) pushesUnderLoad(t *testing.T, control *controlPlane) {
	const lasts = 8 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			control.apply(t, []string{withoutBodies, withBodies}[i%2]) //nolint:testifylint // the same
			time.Sleep(2 * time.Second)
		}
	}()
	f := r.fly(ctx, t, 200, visits)
	<-done
	t.Logf("%s: %d requests reached the upstream, at most %d at once, %.1f %% of the slots used", t.Name(), r.upstream.reached, r.upstream.most,
		100*f.share(t, f.begin.Add(time.Second), f.begin.Add(lasts)))
	require.LessOrEqual(t, r.upstream.most, slots)
	r.requireAllFree(t)
}

func TestWithheldBodies(t *testing.T) { eachEnvoy(t, rows("withheld")) }
