package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	slots       = 10
	linger      = time.Second
	inFlightFor = 12 * time.Second
)

// flight is a load on the slots of a rule.
type flight struct {
	rig      *answerRig
	clients  *clients
	visits   []visit
	begin    time.Time
	statuses sync.Map // by visit: *[600]atomic.Int64
}

// fly has n clients ask until ctx ends. One that is denied asks again soon.
func (r *answerRig) fly(ctx context.Context, t *testing.T, n int, visits []visit) *flight {
	r.upstream.forget(t)
	f := &flight{rig: r, clients: newClients(t, r.address, r.upstream), visits: visits, begin: time.Now()}
	atOnce(n, func(i int) {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		for j := 0; ctx.Err() == nil; j++ {
			v := &visits[(i+j)%len(visits)]
			took := 50 + random.IntN(451)
			if v.resets { // in time, also on a busy machine; the upstream is done before the slot is free
				took = 500 + random.IntN(251)
			}
			for again := true; again && ctx.Err() == nil; {
				status := f.clients.visit(context.WithoutCancel(ctx), v, "/flight", fmt.Sprint(i, "-", j), time.Duration(took)*time.Millisecond)
				f.count(v, status)
				if again = status == http.StatusTooManyRequests; again {
					time.Sleep(time.Duration(100+random.IntN(200)) * time.Millisecond)
				}
			}
		}
	})
	return f
}

func (f *flight) count(v *visit, status int) {
	counts, _ := f.statuses.LoadOrStore(v, new([600]atomic.Int64))
	counts.(*[600]atomic.Int64)[status].Add(1)
}

// requireStatuses: each visit has ended as it had to, some of each kind, or was denied.
func (f *flight) requireStatuses(t *testing.T) {
	for i := range f.visits {
		v := &f.visits[i]
		counts, _ := f.statuses.LoadOrStore(v, new([600]atomic.Int64))
		for status := range 600 {
			n := counts.(*[600]atomic.Int64)[status].Load()
			switch status {
			case v.want:
				require.Positive(t, n, v.name)
			case http.StatusTooManyRequests, v.late():
			default:
				require.Zero(t, n, "%s: %d", v.name, status)
			}
		}
	}
}

// share is how much of the slots' time was used between from and to, as the proxy's log has
// it: from when a request came until it was over, or for linger after it was reset.
func (f *flight) share(t *testing.T, from, to time.Time) float64 {
	time.Sleep(time.Second) // the log is written by then
	var used time.Duration
	for line := range strings.Lines(read(t, f.rig.accessLog)) {
		if !strings.Contains(line, " /flight") {
			continue
		}
		var start float64
		var ms int
		var flags, details, path string
		_, err := fmt.Sscan(line, &start, &ms, &flags, &details, &path)
		require.NoError(t, err, line)
		if strings.HasPrefix(details, "rate_limited") || details == "internal_redirect" {
			continue // a redirect's second pass has the time of both
		}
		begin := time.UnixMicro(int64(start * 1e6))
		end := begin.Add(time.Duration(ms) * time.Millisecond)
		if details == "max_duration_timeout" || slices.Contains([]string{"DC", "DR", "UT", "SI", "UPE"}, flags) {
			end = end.Add(linger)
		}
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		used += max(0, end.Sub(begin))
	}
	return used.Seconds() / slots / to.Sub(from).Seconds()
}

// requireAllFree: all slots are there, and not one more.
func (r *answerRig) requireAllFree(t *testing.T) {
	used(t, r.proxy, "in-flight")
	r.requireGauges(t, "in-flight")
	r.upstream.forget(t)
	c := newClients(t, r.address, r.upstream)
	statuses := make([]int, 2*slots)
	atOnce(len(statuses), func(i int) {
		statuses[i] = c.visit(t.Context(), &visit{do: "200"}, "/flight", "", 500*time.Millisecond)
	})
	slices.Sort(statuses)
	require.Equal(t, append(slices.Repeat([]int{200}, slots), slices.Repeat([]int{429}, slots)...), statuses)
	require.Equal(t, slots, r.upstream.most)
	used(t, r.proxy, "in-flight")
}

// TestAnswers: an answer is charged by what came of it, and requests in flight keep to their
// slots, on an Envoy with all its ways to end a request.
func TestAnswers(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		r := newAnswerRig(t, d, proxyOptions{policy: edgesPolicy})
		t.Run("charged", r.charged)
		t.Run("in flight", r.inFlight)
		r.noTraps(t)
	})
}

// inFlight: under every way in which a request may end never more than so many are at the
// upstream at once, and no slot is lost or lies idle for long.
func (r *answerRig) inFlight(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), inFlightFor)
	defer cancel()
	f := r.fly(ctx, t, 200, visits)
	share := f.share(t, f.begin.Add(time.Second), f.begin.Add(inFlightFor))
	t.Logf("%s: %d requests reached the upstream in %s, at most %d at once, %.1f %% of the slots used",
		t.Name(), r.upstream.reached, inFlightFor, r.upstream.most, 100*share)
	require.LessOrEqual(t, r.upstream.most, slots)
	require.GreaterOrEqual(t, share, 0.97)
	f.requireStatuses(t)
	for _, gauge := range []string{"rate_limit_held_units", "rate_limit_held_streams"} {
		_, shown := r.metric(t, gauge, "in-flight")
		require.True(t, shown, gauge)
	}
	r.requireAllFree(t)
}
