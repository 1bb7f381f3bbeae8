//go:build oracle

package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

var (
	oracleCalls = flag.Int("oracle-calls", 4000, "how many calls TestOracle sends to each service")
	oracleSeed  = flag.Uint64("oracle-seed", 0, "seed of TestOracle, 0 = another one each time")
	oracleDir   = flag.String("oracle-differences", "", "folder that gets a file for each round with differences")
)

// incumbent is the path of envoyproxy/ratelimit.
func incumbent(t *testing.T) string {
	path := os.Getenv("SLUICE_RATELIMIT")
	if path == "" {
		found, err := filepath.Glob(filepath.Join(buildtest.Root(), "build", "out", "ratelimit-*", "service_cmd"))
		require.NoError(t, err)
		require.NotEmpty(t, found, "run `build/fetch ratelimit`, or set SLUICE_RATELIMIT to the path of one")
		path = found[len(found)-1]
	}
	return path
}

// oracle sends the same calls to two services, each on its own Redis.
type oracle struct {
	services     [2]*rateLimiter // theirs, ours
	seed         uint64
	later        bool           // the incumbent is a later version: see draws
	change       func(r *round) // of what the second service gets
	compared     int            // calls
	turned       int            // calls that were not compared, since a second ended while they were answered
	uncounted    int            // rounds whose series were not compared, for the same reason
	kinds        map[string]int // of all differences
	examples     []string       // of each kind the first three
	calledByHTTP int
	met          map[string]int // how many descriptors met what
}

// round is a configuration with which services are started, and the calls that are sent to them.
type round struct {
	number   int
	files    map[string]*configFile
	settings []string
	calls    []*ratelimit.RateLimitRequest
}

const callsPerRound = 1000

func newOracle(t *testing.T, theirs, ours string, seed uint64) *oracle {
	o := &oracle{seed: seed, kinds: map[string]int{}, met: map[string]int{}}
	for i, program := range []string{theirs, ours} {
		o.services[i] = newRateLimiter(t, program, servertest.StartRedis(t, servertest.Redis(t)).Addr())
	}
	first := o.services[0]
	first.start(t, map[string]string{"a.yaml": "domain: d\ndescriptors: [{key: k, metadata: {a: b}}]\n"})
	o.later = first.settled(t)["ratelimit_service_config_load_error"] == 0
	end(t, first.Child)
	t.Logf("seed %d; envoyproxy/ratelimit knows metadata and * anywhere in a value: %v", seed, o.later)
	return o
}

// run runs rounds until so many calls have been compared.
func (o *oracle) run(t *testing.T, calls int) {
	began := time.Now()
	for number := 0; o.compared < calls; number++ {
		d := draws{Rand: rand.New(rand.NewPCG(o.seed, uint64(number))), later: o.later}
		d.metadata = o.later && d.chance(40)
		r := &round{number: number, files: d.config(number), settings: d.settings()}
		var files []*configFile
		for _, name := range slices.Sorted(maps.Keys(r.files)) {
			files = append(files, r.files[name])
		}
		for range min(callsPerRound, calls-o.compared) {
			r.calls = append(r.calls, d.call(files))
		}
		o.round(t, r)
	}
	t.Logf("%d calls compared in %s (%d of them by HTTP), %d dropped because a second ended between the two, "+
		"%d rounds whose series were not compared for that reason", o.compared, time.Since(began).Round(time.Second),
		o.calledByHTTP, o.turned, o.uncounted)
	t.Logf("descriptors met: %v", o.met)
}

// meet counts what the descriptors of a call have met.
func (o *oracle) meet(response *ratelimit.RateLimitResponse) {
	if response == nil {
		o.met["an error"]++
	}
	for _, s := range response.GetStatuses() {
		switch {
		case s.Code == ratelimit.RateLimitResponse_OVER_LIMIT:
			o.met["a limit, and were over it"]++
		case s.CurrentLimit != nil:
			o.met["a limit"]++
		case s.LimitRemaining > 0:
			o.met["unlimited"]++
		default:
			o.met["no limit"]++
		}
	}
}

// round sends the calls of a round. If a second ends while a call is answered, the two may have
// counted it in different windows: then the round ends.
func (o *oracle) round(t *testing.T, r *round) {
	for i, service := range o.services {
		if i == 1 && o.change != nil {
			o.change(r)
		}
		service.start(t, texts(t, r.files), r.settings...)
	}
	found := 0
	for i, request := range r.calls {
		answers, turned := o.pair(t, i, request)
		if turned {
			o.turned++
			o.uncounted++
			break
		}
		o.compared++
		o.meet(answers[0].response)
		for _, kind := range unequal(answers[0], answers[1]) {
			found++
			o.differs(kind, fmt.Sprintf("round %d, call %d: %s\n  theirs %s\n  ours   %s",
				r.number, i, shown(request), answers[0], answers[1]))
		}
		if i == len(r.calls)-1 {
			found += o.compareSeries(t, r)
		}
	}
	if found > 0 {
		o.keep(t, r)
	}
	for _, service := range o.services {
		end(t, service.Child)
	}
}

// compareSeries compares what the services have counted.
func (o *oracle) compareSeries(t *testing.T, r *round) (found int) {
	theirs, ours := o.services[0].settled(t), o.services[1].settled(t)
	ours = asTheirs(ours, !slices.Contains(r.settings, noMemory))
	for _, line := range unequalSeries(compared(theirs), compared(ours)) {
		found++
		o.differs(line[:strings.IndexAny(line, "{:")], fmt.Sprintf("round %d: %s", r.number, line))
	}
	return found
}

// pair sends a call to both services at once, in the middle of a second.
func (o *oracle) pair(t *testing.T, i int, request *ratelimit.RateLimitRequest) (answers [2]answer, turned bool) {
	const early, late = 5 * time.Millisecond, 850 * time.Millisecond
	now := time.Now()
	switch into := time.Duration(now.Nanosecond()); {
	case into < early:
		time.Sleep(early - into)
	case into > late:
		time.Sleep(time.Second + early - into)
	}
	before := time.Now().Unix()
	byHTTP := i%50 == 49
	if byHTTP {
		o.calledByHTTP++
	}
	atOnce(2, func(side int) {
		if byHTTP {
			answers[side] = o.services[side].post(t.Context(), request)
		} else {
			answers[side] = o.services[side].call(t.Context(), request)
		}
	})
	return answers, time.Now().Unix() != before
}

// differs notes a difference.
func (o *oracle) differs(kind, example string) {
	o.kinds[kind]++
	if o.kinds[kind] <= 3 {
		o.examples = append(o.examples, kind+": "+example)
	}
}

// keep writes a round with its configuration into the folder for differences.
func (o *oracle) keep(t *testing.T, r *round) {
	if *oracleDir == "" {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# seed %d, round %d\n# %s\n", o.seed, r.number, strings.Join(r.settings, " "))
	for name, text := range texts(t, r.files) {
		fmt.Fprintf(&b, "\n# %s\n---\n%s", name, text)
	}
	for _, example := range o.examples {
		if strings.Contains(example, fmt.Sprintf("round %d", r.number)) {
			b.WriteString("\n# " + strings.ReplaceAll(example, "\n", "\n# ") + "\n")
		}
	}
	require.NoError(t, os.MkdirAll(*oracleDir, 0o700))
	path := filepath.Join(*oracleDir, fmt.Sprintf("round-%03d.yaml", r.number))
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
}

// require fails if there are differences.
func (o *oracle) require(t *testing.T) {
	require.Empty(t, o.kinds, "differences by kind\n%s", strings.Join(o.examples, "\n"))
}

// unequal are the kinds of differences between two answers.
func unequal(theirs, ours answer) (kinds []string) {
	add := func(kind string, differ bool) {
		if differ && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if theirs.response == nil || ours.response == nil { // what an error says is for people, in other words
		add("error", theirs.code != ours.code || (theirs.response == nil) != (ours.response == nil))
		return kinds
	}
	a, b := proto.CloneOf(theirs.response), ours.response
	add("HTTP status", theirs.code != ours.code)
	add("overall code", a.OverallCode != b.OverallCode)
	add("number of statuses", len(a.Statuses) != len(b.Statuses))
	for i := range min(len(a.Statuses), len(b.Statuses)) {
		x, y := a.Statuses[i], b.Statuses[i]
		add("code", x.Code != y.Code)
		add("current_limit", !proto.Equal(x.CurrentLimit, y.CurrentLimit))
		add("limit_remaining", x.LimitRemaining != y.LimitRemaining)
		add("duration_until_reset", !proto.Equal(x.DurationUntilReset, y.DurationUntilReset))
	}
	headers := func(r *ratelimit.RateLimitResponse) string {
		return shown(&ratelimit.RateLimitResponse{ResponseHeadersToAdd: r.ResponseHeadersToAdd})
	}
	add("headers", headers(a) != headers(b))
	add("dynamic_metadata", metadataText(a) != metadataText(b))
	a.DynamicMetadata = b.DynamicMetadata
	if len(kinds) == 0 {
		add("another field", !proto.Equal(a, b))
	}
	return kinds
}

// TestOracle holds sluice in the place of envoyproxy/ratelimit against the real one: random
// configurations, settings and calls, of which every answer and every series is the same.
func TestOracle(t *testing.T) {
	seed := *oracleSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	o := newOracle(t, incumbent(t), ours(t), seed)
	o.run(t, *oracleCalls)
	o.require(t)
}

// The oracle finds no difference between envoyproxy/ratelimit and itself.
func TestOracleOfItself(t *testing.T) {
	o := newOracle(t, incumbent(t), incumbent(t), rand.Uint64())
	o.run(t, 2000)
	o.require(t)
}

// The oracle finds each difference that there can be.
func TestOracleFindsDifferences(t *testing.T) {
	set := func(name, value string) func(r *round) {
		return func(r *round) { r.settings = append(r.settings, name+"="+value) }
	}
	for _, tc := range []struct {
		name   string
		change func(r *round)
		kinds  []string // at least these are found
	}{
		{"headers", set("LIMIT_RESET_HEADER", "another"), []string{"headers"}},
		{"near limit", set("NEAR_LIMIT_RATIO", "0.1"), []string{"ratelimit_service_rate_limit_near_limit"}},
		{"shadow mode", set("SHADOW_MODE", "true"), []string{"overall code", "HTTP status",
			"ratelimit_service_global_shadow_mode"}},
		{"memory", set("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"), []string{
			"the sum of all *_over_limit_with_local_cache"}},
		{"limits", func(r *round) { eachLimit(r, func(l *rateLimit) { l.Requests += 2 }) }, []string{"code", "overall code",
			"current_limit", "limit_remaining", "ratelimit_service_rate_limit_over_limit"}},
		{"units", func(r *round) { eachLimit(r, func(l *rateLimit) { l.Unit = "day" }) }, []string{"duration_until_reset"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOracle(t, incumbent(t), incumbent(t), 1)
			o.change = tc.change
			o.run(t, 2000)
			for _, kind := range tc.kinds {
				require.Positive(t, o.kinds[kind], "%s is not among %v", kind, o.kinds)
			}
		})
	}
}

func eachLimit(r *round, do func(l *rateLimit)) {
	var walk func(level []*descriptor)
	walk = func(level []*descriptor) {
		for _, n := range level {
			if n.RateLimit != nil && !n.RateLimit.Unlimited {
				do(n.RateLimit)
			}
			walk(n.Descriptors)
		}
	}
	for _, file := range r.files {
		walk(file.Descriptors)
	}
}

// TestOracleCases: what the cases say is what envoyproxy/ratelimit does.
func TestOracleCases(t *testing.T) {
	o := newOracle(t, incumbent(t), incumbent(t), 1)
	runCases(t, incumbent(t), func(c limiterCase) bool { return c.Differs || c.Later && !o.later }, func(r *rateLimiter) {
		require.NoError(t, r.untilHealthy(t))
		require.InDelta(t, 1, r.settled(t)["ratelimit_service_config_load_error"], 0)
	})
}

// TestOracleReplicas: two replicas of envoyproxy/ratelimit pass the test of two of sluice.
func TestOracleReplicas(t *testing.T) { replicas(t, incumbent(t)) }

// TestOracleChanges: envoyproxy/ratelimit takes changes as sluice has to.
func TestOracleChanges(t *testing.T) { changes(t, incumbent(t)) }

// TestOracleOfBadCalls: calls that no Envoy makes are answered alike, and as well afterwards.
func TestOracleOfBadCalls(t *testing.T) {
	o := newOracle(t, incumbent(t), ours(t), 1)
	for _, r := range o.services {
		r.start(t, map[string]string{"a.yaml": `
domain: d
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: b, value: "x*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 1000}}
`})
	}
	repeat := strings.Repeat
	for name, request := range map[string]*ratelimit.RateLimitRequest{
		"1,000 descriptors":     callOf(t, "d", strings.Fields(repeat("a=1 b=x b=y ", 334))...),
		"1,000 entries":         callOf(t, "d", repeat("a=1 ", 1000)),
		"a value of 1 MB":       callOf(t, "d", "a="+repeat("v", 1<<20)),
		"a shared one":          callOf(t, "d", "b=x"+repeat("v", 1<<20)),
		"a key of 1 MB":         callOf(t, "d", repeat("k", 1<<20)+"=1"),
		"a domain of 1 MB":      callOf(t, repeat("d", 1<<20), "a=1"),
		"more than gRPC takes":  callOf(t, "d", "a="+repeat("v", 5<<20)),
		"control characters":    callOf(t, "d", "a=\x00\x01\x7f", "b=x\x00"),
		"an empty key":          callOf(t, "d", "=1", "=", "a="),
		"more hits than 32 bit": callOf(t, "d", "a=2 hits:5000000000", "a=2 hits:0"),
	} {
		t.Run(name, func(t *testing.T) {
			answers, _ := o.pair(t, 0, request)
			require.Empty(t, unequal(answers[0], answers[1]), "theirs %.500s\nours   %.500s", answers[0], answers[1])
		})
	}
	t.Run("a key that is no UTF-8", func(t *testing.T) {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff")
		call := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "d")
		call = protowire.AppendBytes(protowire.AppendTag(call, 2, protowire.BytesType),
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry))
		theirs, ours := o.services[0].raw(t.Context(), call), o.services[1].raw(t.Context(), call)
		require.Error(t, theirs)
		require.Equal(t, status.Code(theirs), status.Code(ours), "theirs %s, ours %s", theirs, ours)
	})
	for _, r := range o.services {
		require.Equal(t, "ok, 999 of 1000/year left",
			statusText(r.call(t.Context(), callOf(t, "d", "a=last")).response.Statuses[0]))
	}
}

// raw sends bytes in the place of a call.
func (r *rateLimiter) raw(ctx context.Context, call []byte) error {
	var got []byte
	return r.conn.Invoke(ctx, ratelimit.RateLimitService_ShouldRateLimit_FullMethodName, &call, &got,
		grpc.ForceCodecV2(bytesCodec{}))
}

// bytesCodec sends and receives bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
