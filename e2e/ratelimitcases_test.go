package e2e

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// limiterCases is a file of testdata/ratelimit: settings of a rate limit service, and cases of what
// it answers with them. testdata/ratelimit/README.md says how they are written.
type limiterCases struct {
	Settings []string
	Cases    []limiterCase
}

// limiterCase is a configuration, and calls that are sent in this order to a service that has just
// started.
type limiterCase struct {
	Name     string
	Later    bool // envoyproxy/ratelimit of January 2026 answers in another way
	Differs  bool // every envoyproxy/ratelimit does
	Settings []string
	Config   string
	Files    map[string]string // in the place of Config
	Refused  bool              // the service does not take the configuration
	Calls    []limiterCall
	Series   map[string]float64 // at the end
}

type limiterCall struct {
	Domain   string
	Ask      []string // a descriptor each
	Hits     uint32
	Times    int // that it is sent; what follows is about the last time
	Answer   []string
	Overall  string // "over" or "ok"; empty = "over" if an answer is
	Error    string
	Headers  []string // "name: value"; "reset of 1" = the seconds until the reset of the second answer
	Metadata string   // JSON
}

// unitSeconds are how long the windows of each unit of a limit are.
var unitSeconds = map[ratelimit.RateLimitResponse_RateLimit_Unit]int64{
	ratelimit.RateLimitResponse_RateLimit_SECOND: 1,
	ratelimit.RateLimitResponse_RateLimit_MINUTE: 60,
	ratelimit.RateLimitResponse_RateLimit_HOUR:   3600,
	ratelimit.RateLimitResponse_RateLimit_DAY:    86400,
	ratelimit.RateLimitResponse_RateLimit_WEEK:   7 * 86400,
	ratelimit.RateLimitResponse_RateLimit_MONTH:  30 * 86400,
	ratelimit.RateLimitResponse_RateLimit_YEAR:   365 * 86400,
}

// limiterSuites are the files of cases, by their names.
func limiterSuites(t *testing.T) map[string]limiterCases {
	suites := map[string]limiterCases{}
	paths, err := filepath.Glob("testdata/ratelimit/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		text, err := os.Open(path)
		require.NoError(t, err)
		decoder := yaml.NewDecoder(text)
		decoder.KnownFields(true)
		var suite limiterCases
		require.NoError(t, decoder.Decode(&suite), path)
		require.NoError(t, text.Close())
		suites[strings.TrimSuffix(filepath.Base(path), ".yaml")] = suite
	}
	return suites
}

// TestRateLimitCases: sluice answers as a rate limit service as the cases say. With a configuration
// that it does not take it ends, and says which file is wrong.
func TestRateLimitCases(t *testing.T) {
	t.Parallel()
	runCases(t, ours(t), func(limiterCase) bool { return false }, func(r *rateLimiter) {
		<-r.Done()
		require.Contains(t, r.Log(), ".yaml")
	})
}

// runCases runs the cases that are not left out. Refuses checks a service that was started with a
// configuration that it does not take.
func runCases(t *testing.T, program string, leftOut func(limiterCase) bool, refuses func(r *rateLimiter)) {
	for name, suite := range limiterSuites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := servertest.StartRedis(t, servertest.Redis(t)).Addr()
			for _, c := range suite.Cases {
				if leftOut(c) {
					t.Logf("left out: %s", c.Name)
					continue
				}
				t.Run(c.Name, func(t *testing.T) {
					service := newRateLimiter(t, program, redis)
					settings := slices.Concat(suite.Settings, c.Settings)
					if c.Files == nil {
						c.Files = map[string]string{"config.yaml": c.Config}
					}
					if c.Refused {
						service.begin(t, c.Files, settings...)
						refuses(service)
						return
					}
					c.run(t, service, settings)
				})
			}
		})
	}
}

// run runs a case, in counters of its own. If a window ends while it runs, it begins anew: what it
// expects is of one window.
func (c limiterCase) run(t *testing.T, service *rateLimiter, settings []string) {
	for attempt := 0; ; attempt++ {
		service.start(t, c.Files, append(settings, fmt.Sprintf("CACHE_KEY_PREFIX=%s %d:", c.Name, attempt))...)
		inOneSecond := strings.Contains(c.Config, "second")
		if into := time.Duration(time.Now().Nanosecond()); inOneSecond && into > 300*time.Millisecond {
			time.Sleep(time.Second - into)
		}
		began := time.Now().Unix()
		wrong := c.send(t, service)
		ended := time.Now().Unix()
		if inOneSecond && began != ended || began/60 != ended/60 {
			end(t, service.Child)
			continue
		}
		require.NoError(t, wrong)
		series := service.settled(t)
		for name, want := range c.Series {
			require.InDelta(t, want, series["ratelimit_service_"+name], 0, "%s\nof %v", name, compared(series))
		}
		return
	}
}

// send sends the calls, and returns what is wrong with the answers.
func (c limiterCase) send(t *testing.T, service *rateLimiter) error {
	for i, call := range c.Calls {
		request := callOf(t, call.Domain, call.Ask...)
		request.HitsAddend = call.Hits
		var got answer
		var sent time.Time
		for range max(call.Times, 1) {
			sent = time.Now()
			got = service.call(t.Context(), request)
		}
		if err := call.wrong(t, got, sent); err != nil {
			return fmt.Errorf("call %d, %v: %w; all of it: %s", i, call.Ask, err, got)
		}
	}
	return nil
}

// wrong is what is not as it should be with an answer.
func (c limiterCall) wrong(t *testing.T, got answer, sent time.Time) error {
	if c.Error != "" || got.response == nil {
		if c.Error == "" || !strings.Contains(got.message, c.Error) {
			return fmt.Errorf("error %q, want %q", got.message, c.Error)
		}
		return nil
	}
	overall := c.Overall
	if overall == "" {
		overall = "ok"
		if slices.ContainsFunc(c.Answer, func(text string) bool { return strings.HasPrefix(text, "over") }) {
			overall = "over"
		}
	}
	is := map[ratelimit.RateLimitResponse_Code]string{1: "ok", 2: "over"}[got.response.OverallCode]
	if is != overall {
		return fmt.Errorf("overall %q, want %q", is, overall)
	}
	var answers []string
	var wrong error
	for _, s := range got.response.Statuses {
		answers = append(answers, statusText(s))
		wrong = errors.Join(wrong, wrongReset(s, sent))
	}
	if !slices.Equal(answers, c.Answer) {
		return fmt.Errorf("%q, want %q", answers, c.Answer)
	}
	if c.Metadata != "" {
		require.JSONEq(t, c.Metadata, metadataText(got.response))
	}
	return errors.Join(wrong, c.wrongHeaders(got.response))
}

func (c limiterCall) wrongHeaders(got *ratelimit.RateLimitResponse) error {
	var want, is []string
	for _, text := range c.Headers {
		if name, of, ok := strings.Cut(text, "reset of "); ok {
			i, err := strconv.Atoi(of)
			if err != nil {
				return err
			}
			text = name + strconv.FormatInt(got.Statuses[i].DurationUntilReset.GetSeconds(), 10)
		}
		want = append(want, text)
	}
	for _, h := range got.ResponseHeadersToAdd {
		is = append(is, h.Key+": "+h.Value)
	}
	if !slices.Equal(is, want) {
		return fmt.Errorf("headers %q, want %q", is, want)
	}
	return nil
}

// statusText is what a descriptor was answered, as cases say it.
func statusText(s *ratelimit.RateLimitResponse_DescriptorStatus) string {
	limit := s.CurrentLimit
	code := map[ratelimit.RateLimitResponse_Code]string{1: "ok", 2: "over"}[s.Code]
	switch {
	case limit == nil && s.LimitRemaining == math.MaxUint32:
		return code + ", unlimited"
	case limit == nil && s.LimitRemaining == 0:
		return code + ", no limit"
	case limit == nil:
		return fmt.Sprintf("%s, no limit but %d left", code, s.LimitRemaining)
	}
	text := fmt.Sprintf("%s, %d of %d/%s left", code, s.LimitRemaining, limit.RequestsPerUnit,
		strings.ToLower(limit.Unit.String()))
	if limit.Name != "" {
		text += " by " + limit.Name
	}
	return text
}

// wrongReset says whether the time until the reset is wrong, in an answer to a call that was sent
// then: a window ends where the seconds since 1970 are a multiple of its unit.
func wrongReset(s *ratelimit.RateLimitResponse_DescriptorStatus, sent time.Time) error {
	got := s.DurationUntilReset.GetSeconds()
	if s.CurrentLimit == nil {
		if got != 0 {
			return fmt.Errorf("a reset in %d s without a limit", got)
		}
		return nil
	}
	unit := unitSeconds[s.CurrentLimit.Unit]
	end := (sent.Unix() + got + unit - 1) / unit * unit
	if now := time.Now().Unix(); got < 1 || got > unit || end > now+got {
		return fmt.Errorf("a reset in %d s at %d", got, now)
	}
	return nil
}

// descriptorOf reads a descriptor: "key=value key=value hits:3 limit:5/day".
func descriptorOf(t *testing.T, text string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for _, word := range strings.Fields(text) {
		if hits, ok := strings.CutPrefix(word, "hits:"); ok {
			n, err := strconv.ParseUint(hits, 10, 64)
			require.NoError(t, err, text)
			d.HitsAddend = wrapperspb.UInt64(n)
			continue
		}
		if limit, ok := strings.CutPrefix(word, "limit:"); ok {
			requests, unit, _ := strings.Cut(limit, "/")
			n, err := strconv.ParseUint(requests, 10, 32)
			require.NoError(t, err, text)
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(n), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[strings.ToUpper(unit)]),
			}
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}
