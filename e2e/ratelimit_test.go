package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// rateLimiter is a rate limit service: envoyproxy/ratelimit, or sluice called by its name. Both
// take their settings from the environment.
type rateLimiter struct {
	*child.Child // one life of it
	ratelimit.RateLimitServiceClient

	conn    *grpc.ClientConn
	program string
	redis   string // address
	root    string // the folder that has the configuration files in ratelimit/config

	grpc, http, debug, prometheus string // addresses

	calls atomic.Uint64 // by gRPC, in this life
}

var limiterPath = flag.String("rate-limiter", "", "path of a rate limit service that is tried in the place of sluice")

// ours is the path by which sluice is a rate limit service.
func ours(t *testing.T) string {
	if *limiterPath != "" {
		return *limiterPath
	}
	link := filepath.Join(t.TempDir(), "ratelimit")
	require.NoError(t, os.Symlink(built.sluice, link))
	return link
}

// newRateLimiter is a service that does not run yet, with addresses of its own.
func newRateLimiter(t *testing.T, program, redis string) *rateLimiter {
	r := &rateLimiter{
		program: program, redis: redis,
		grpc: freeAddress(t), http: freeAddress(t), debug: freeAddress(t), prometheus: freeAddress(t),
	}
	var err error
	r.conn, err = grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.conn.Close()
		if r.Child != nil {
			end(t, r.Child)
		}
	})
	r.RateLimitServiceClient = ratelimit.NewRateLimitServiceClient(r.conn)
	return r
}

// start starts the service with these files of configuration, by name, and these settings more,
// and returns when it is healthy.
func (r *rateLimiter) start(t *testing.T, files map[string]string, settings ...string) {
	r.begin(t, files, settings...)
	require.NoError(t, r.untilHealthy(t))
}

func (r *rateLimiter) untilHealthy(t *testing.T) error {
	return r.Until(t.Context(), "be healthy", func() bool { return answered("http://" + r.http + "/healthcheck") })
}

// begin is start that does not wait.
func (r *rateLimiter) begin(t *testing.T, files map[string]string, settings ...string) {
	r.root = t.TempDir()
	r.calls.Store(0)
	require.NoError(t, os.MkdirAll(filepath.Join(r.root, "ratelimit", "config"), 0o700))
	for name, text := range files {
		r.write(t, name, text)
	}
	cmd := exec.Command(r.program)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LOG_LEVEL=error",
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + r.redis,
		"RUNTIME_ROOT=" + r.root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + r.prometheus, "STATS_FLUSH_INTERVAL=50ms",
	}
	for prefix, address := range map[string]string{"": r.http, "GRPC_": r.grpc, "DEBUG_": r.debug} {
		host, port, _ := strings.Cut(address, ":")
		cmd.Env = append(cmd.Env, prefix+"HOST="+host, prefix+"PORT="+port)
	}
	cmd.Env = append(cmd.Env, settings...)
	var err error
	r.Child, err = child.Start(cmd)
	require.NoError(t, err)
}

// write puts a file of configuration into its folder, at once as a whole.
func (r *rateLimiter) write(t *testing.T, name, text string) {
	written := filepath.Join(r.root, name)
	require.NoError(t, os.WriteFile(written, []byte(text), 0o600))
	require.NoError(t, os.Rename(written, filepath.Join(r.root, "ratelimit", "config", name)))
}

// answer is what a service answers a call with: a response, or an error.
type answer struct {
	response *ratelimit.RateLimitResponse
	code     codes.Code
	message  string
}

func (a answer) String() string {
	if a.response == nil {
		return fmt.Sprintf("error %s: %s", a.code, a.message)
	}
	return shown(a.response)
}

// metadataText is the dynamic metadata as JSON. It has the limits of descriptors as protobuf prints
// them, which differs in spaces from build to build.
func metadataText(r *ratelimit.RateLimitResponse) string {
	return strings.ReplaceAll(shown(r.GetDynamicMetadata()), "  ", " ")
}

// shown is a message as JSON in one line.
func shown(message proto.Message) string {
	text, err := protojson.Marshal(message)
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return err.Error()
	}
	return b.String()
}

// call asks the service by gRPC.
func (r *rateLimiter) call(ctx context.Context, request *ratelimit.RateLimitRequest) answer {
	r.calls.Add(1)
	response, err := r.ShouldRateLimit(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return answer{code: status.Code(err), message: status.Convert(err).Message()}
	}
	return answer{response: response}
}

// post asks the service by HTTP. The code of an error is the status of HTTP.
func (r *rateLimiter) post(ctx context.Context, request *ratelimit.RateLimitRequest) answer {
	failed := func(err error) answer { return answer{code: codes.Internal, message: err.Error()} }
	text, err := protojson.Marshal(request)
	if err != nil {
		return failed(err)
	}
	asked, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.http+"/json", bytes.NewReader(text))
	if err != nil {
		return failed(err)
	}
	res, err := http.DefaultClient.Do(asked)
	if err != nil {
		return failed(err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return failed(err)
	}
	response := &ratelimit.RateLimitResponse{}
	if err := protojson.Unmarshal(said, response); err != nil {
		return answer{code: codes.Code(res.StatusCode), message: string(said)}
	}
	return answer{response: response, code: codes.Code(res.StatusCode)}
}

var (
	seriesLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?) (\S+)$`)
	emptyLabel = regexp.MustCompile(`,?\b\w+=""`) // to Prometheus the same as none
)

// series are the values that Prometheus gets, by names with labels.
func (r *rateLimiter) series(t *testing.T) map[string]float64 {
	values := map[string]float64{}
	for _, line := range seriesLine.FindAllStringSubmatch(body(t, "http://"+r.prometheus+"/metrics"), -1) {
		value, err := strconv.ParseFloat(line[2], 64)
		require.NoError(t, err, line[0])
		values[emptyLabel.ReplaceAllString(line[1], "")] += value
	}
	return values
}

const callsTotal = `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`

// settled are the series once all calls before are in them. envoyproxy/ratelimit hands its counters
// to Prometheus one after the other, round after round: a call is surely in all of them when a
// third call after it, each made when the one before was counted, is counted.
func (r *rateLimiter) settled(t *testing.T) map[string]float64 {
	for range 3 {
		refused := r.call(t.Context(), &ratelimit.RateLimitRequest{})
		require.Nil(t, refused.response, "a call without a domain")
		require.NoError(t, r.Until(t.Context(), "count its calls", func() bool {
			return r.series(t)[callsTotal] >= float64(r.calls.Load())
		}))
	}
	return r.series(t)
}

// envoyproxy/ratelimit forgot two of its counters when it mapped them to series: their whole key is
// in the name, a series each. What all of them sum up to is what is compared.
const (
	overLimit   = "ratelimit_service_rate_limit_over_limit"
	memoryEnd   = "_over_limit_with_local_cache"
	notFoundEnd = "_domain_not_found"
)

// compared has the series that two services are compared by: times are not among them.
func compared(series map[string]float64) map[string]float64 {
	values := map[string]float64{}
	for name, value := range series {
		if !strings.HasPrefix(name, "ratelimit_service_") || strings.HasPrefix(name, "ratelimit_service_response_time") {
			continue
		}
		for _, end := range []string{memoryEnd, notFoundEnd} {
			if bare, _, _ := strings.Cut(name, "{"); strings.HasSuffix(bare, end) {
				name = "the sum of all *" + end
			}
		}
		values[name] += value
	}
	return values
}

// asTheirs has series of sluice as envoyproxy/ratelimit has them. If it has a memory of keys over
// their limits, then what is denied from there counts twice among the hits over a limit of two or
// more keys, because its pattern for them also fits the other counter. If it has none, then it has
// no such series.
func asTheirs(series map[string]float64, hasMemory bool) map[string]float64 {
	values := maps.Clone(series)
	for name, value := range series {
		labels, isMemory := strings.CutPrefix(name, "ratelimit_service_rate_limit"+memoryEnd)
		if !isMemory || hasMemory && !strings.Contains(labels, ",key2=") {
			continue
		}
		delete(values, name)
		if hasMemory {
			values[overLimit+labels] += value
		}
	}
	return values
}

// unequalSeries are the differences between what two services have counted. A series that one of
// them does not have is zero.
func unequalSeries(theirs, ours map[string]float64) (lines []string) {
	names := maps.Clone(theirs)
	maps.Copy(names, ours)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if theirs[name] != ours[name] {
			lines = append(lines, fmt.Sprintf("%s: theirs %v, ours %v", name, theirs[name], ours[name]))
		}
	}
	return lines
}
