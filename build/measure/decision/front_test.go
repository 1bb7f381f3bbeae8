//go:build linux

package decision

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// frontCase is a case of two rate limit services, envoyproxy/ratelimit and sluice in its place, each
// on a Redis of its own.
type frontCase struct {
	name, title string
	keys        string                             // of the descriptors of a call
	draw        func(connection int) func() []byte // values of the keys; nil = one
	byEnvoy     bool                               // an Envoy makes the calls
	bound       float64                            // most of the CPU of envoyproxy/ratelimit
}

const (
	frontRate  = 1500.0 // calls a second
	frontTurn  = 500 * time.Millisecond
	frontTurns = 3 // of each service in a round
)

// frontCases are the calls straight to the service, and then the same by an Envoy.
func frontCases() []frontCase {
	var straight, byEnvoy []frontCase
	for _, c := range []frontCase{
		{name: "1", title: "1 descriptor", keys: "user", draw: zipfKeys, bound: 1},
		{name: "2", title: "2 descriptors", keys: "user,path", draw: zipfKeys, bound: 1},
		{name: "4", title: "4 descriptors", keys: "user,path,plan,tenant", draw: zipfKeys, bound: 1},
		{name: "fresh", title: "fresh keys", keys: "user", draw: freshKeys, bound: 1},
		{name: "hot", title: "one hot key", keys: "user", bound: 0.5},
		{name: "over", title: "a key over its limit", keys: "banned", bound: 0.5},
	} {
		envoys := c
		envoys.byEnvoy = true
		envoys.name = "front-envoy-" + c.name
		envoys.title = "by an Envoy: " + c.title
		byEnvoy = append(byEnvoy, envoys)
		c.name = "front-" + c.name
		straight = append(straight, c)
	}
	return append(straight, byEnvoy...)
}

// site is what runs for the case with one of the services.
func (c frontCase) site(program string) site {
	s := site{workers: 1, limiter: c.keys, program: program, sides: []side{{sideAsked, rateLimit}}}
	if c.byEnvoy {
		s.envoys = 1
	}
	return s
}

// beside are the turns of both services; those of one place were taken one after the other.
type beside struct{ theirs, ours []turn }

// besideRateLimit measures a case: both services in turn, each time in the other order.
func (b *bench) besideRateLimit(t testing.TB, c frontCase, rounds int) (found beside) {
	front := b.front
	if front == "" {
		front = filepath.Join(t.TempDir(), "ratelimit")
		require.NoError(t, os.Symlink(b.sluice, front))
	}
	var fleets []*fleet
	var loads []*clients
	for _, program := range []string{b.ratelimit, front} {
		f := b.run(t, c.site(program))
		for _, p := range f.services {
			pin(t, p.Pid(), b.one...)
		}
		pin(t, f.redis.Pid(), b.one...)
		load := &clients{}
		if c.byEnvoy {
			load = f.dial(t, sideAsked, "", 1)
		} else {
			load.dialLimiter(t, f.limiter, strings.Split(c.keys, ","))
		}
		for i, one := range load.list {
			if c.draw != nil {
				one.draw = c.draw(i)
			}
		}
		for began := time.Now(); time.Since(began) < b.warmUp; {
			load.run(t, full(30*len(load.list)))
		}
		fleets, loads = append(fleets, f), append(loads, load)
	}
	for r := range frontTurns * rounds {
		var got [2]turn
		for i := range got {
			side := i ^ r&1
			got[side] = fleets[side].turn(t, loads[side], paced(frontRate, frontTurn))
			fmt.Printf("%d %s %s: service %6.2f µs, Redis %5.2f, Envoy %6.2f; p50 %.0f µs, p99 %.0f, denied %d of %d\n", r+1,
				c.name, []string{"envoyproxy/ratelimit", "sluice"}[side], got[side].service, got[side].redis, got[side].envoy,
				got[side].p50(), got[side].p99(), got[side].denied, got[side].denied+got[side].admitted)
		}
		found.theirs, found.ours = append(found.theirs, got[0]), append(found.ours, got[1])
	}
	return found
}

// dialLimiter adds connections to a rate limit service. Each call has a descriptor for each key.
func (l *clients) dialLimiter(t testing.TB, port int, keys []string) {
	for range connections {
		conn, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		service := rls.NewRateLimitServiceClient(conn)
		ask := func(value []byte) (denied bool, err error) {
			request := &rls.RateLimitRequest{Domain: "bench"}
			for _, key := range keys {
				request.Descriptors = append(request.Descriptors, &common.RateLimitDescriptor{
					Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: string(value)}},
				})
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			response, err := service.ShouldRateLimit(ctx, request)
			return response.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT, err
		}
		l.list = append(l.list, &client{ask: ask, draw: func() []byte { return []byte("user-000000") }})
	}
}

// measuredFronts are the turns of the cases that were measured, by their names.
type measuredFronts map[string]beside

// cpu is what a call takes of the service and of Redis.
func cpu(t turn) float64 { return t.service + t.redis }

// ratio is our CPU, of envoyproxy/ratelimit's: the median of the turns, NaN without any.
func (b beside) ratio() float64 {
	var list []float64
	for i := range b.ours {
		list = append(list, cpu(b.ours[i])/cpu(b.theirs[i]))
	}
	return quantile(list, 0.5)
}

func (m measuredFronts) table() string {
	p99 := func(t turn) float64 { return t.p99() }
	var rows []string
	for _, c := range frontCases() {
		got, measured := m[c.name]
		if !measured {
			continue
		}
		rows = append(rows, fmt.Sprintf("%s | %.0f + %.0f | %.0f + %.0f | %.2f | %.0f | %.0f", c.title,
			median(got.theirs, func(t turn) float64 { return t.service }),
			median(got.theirs, func(t turn) float64 { return t.redis }),
			median(got.ours, func(t turn) float64 { return t.service }),
			median(got.ours, func(t turn) float64 { return t.redis }),
			got.ratio(), median(got.theirs, p99), median(got.ours, p99)))
	}
	if len(rows) == 0 {
		return ""
	}
	return table("calls | envoyproxy/ratelimit + Redis, µs | sluice + Redis, µs | CPU, of theirs | p99, µs | ours, µs",
		rows...)
}

func (m measuredFronts) targets() string {
	var list []target
	for _, c := range frontCases() {
		list = append(list, target{c.title + ": CPU of the service and Redis, of envoyproxy/ratelimit's", c.bound, "%.2f",
			m[c.name].ratio()})
	}
	return targetTable(list)
}
