//go:build oracle

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// configFile is a file of the rate limit service.
type configFile struct {
	Domain      string        `yaml:"domain"`
	Descriptors []*descriptor `yaml:"descriptors"`
}

// descriptor is a node of such a file.
type descriptor struct {
	Key            string         `yaml:"key"`
	Value          string         `yaml:"value,omitempty"`
	RateLimit      *rateLimit     `yaml:"rate_limit,omitempty"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	ValueToMetric  bool           `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool           `yaml:"share_threshold,omitempty"`
	Metadata       map[string]any `yaml:"metadata,omitempty"`
	Descriptors    []*descriptor  `yaml:"descriptors,omitempty"`
}

// rateLimit is the limit of a descriptor.
type rateLimit struct {
	Unit      string        `yaml:"unit,omitempty"`
	Requests  uint32        `yaml:"requests_per_unit,omitempty"`
	Unlimited bool          `yaml:"unlimited,omitempty"`
	Name      string        `yaml:"name,omitempty"`
	Replaces  []nameOfLimit `yaml:"replaces,omitempty"`
}

type nameOfLimit struct {
	Name string `yaml:"name"`
}

// draws makes random configurations and calls. Same seed, same draws.
type draws struct {
	*rand.Rand

	// later is what versions of envoyproxy/ratelimit since the spring of 2026 know: * anywhere in a
	// value, metadata, and a quota_mode that denies when all quotas are used up.
	later bool
	// metadata is whether limits have metadata, and then no values in metrics and no pattern that
	// another key begins like: envoyproxy/ratelimit forgets the metadata of such limits.
	metadata bool
}

// one has a chance in percent.
func (d draws) chance(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d draws, of ...T) T { return of[d.IntN(len(of))] }

// The words are few, so that calls meet descriptors, and each other. Some have characters that
// names of metrics cannot have, or that part the keys of a metric.
var (
	drawnKeys   = []string{"user", "path", "tier", "a", "a_b", "user_x"}
	drawnValues = []string{"", "a", "b", "ab", "b_c", "a/1", "a/2", "x.y", "10.0.0.1", "v:1|2", "é", "a*", "*"}
	trailing    = []string{"*", "a*", "a/*", "x.y*"}
	anywhere    = []string{"*b", "a*1", "*/*", "a**", "a*b*"}
	drawnUnits  = []string{"second", "second", "SECOND", "minute", "Hour", "day", "week", "month", "year"}
	limitNames  = []string{"n1", "n2", "n3"}
)

// config draws one to three domains, some of them in two files.
func (d draws) config(round int) (files map[string]*configFile) {
	files = map[string]*configFile{}
	for i := range 1 + d.IntN(3) {
		domain := fmt.Sprintf("%s%d-%d", pick(d, "d", "a.b", "c:", "10.0.0.1"), round, i)
		all := append(d.level(1), d.own()...)
		name := fmt.Sprintf("domain-%d.yaml", i)
		files[name] = &configFile{domain, all}
		// Between files, envoyproxy/ratelimit takes patterns in an order that nobody can tell.
		half := len(all) / 2
		if d.chance(30) && !slices.ContainsFunc(all[half:], (*descriptor).isPattern) {
			files[name].Descriptors = all[:half]
			files[fmt.Sprintf("more-%d.yaml", i)] = &configFile{domain, all[half:]}
		}
	}
	return files
}

// ownKey is that of descriptors that calls give limits of their own. The value says which: two limits
// of one descriptor are nothing to compare. If the windows of both begin at the same time, then they
// count in one counter in envoyproxy/ratelimit, whatever their units are. And without a memory, it
// goes on counting beyond a limit, so that another one which is higher may be exceeded too.
const ownKey = "own"

var ownLimits = map[string]uint32{"SECOND": 2, "MINUTE": 5, "HOUR": 10, "DAY": 1, "MONTH": 0, "YEAR": 1000}

// own draws limits of the configuration for such descriptors.
func (d draws) own() (level []*descriptor) {
	for _, unit := range slices.Sorted(maps.Keys(ownLimits)) {
		if d.chance(20) {
			level = append(level, &descriptor{Key: ownKey, Value: unit, DetailedMetric: !d.metadata && d.chance(30),
				RateLimit: &rateLimit{Unit: unit, Requests: ownLimits[unit]}})
		}
	}
	return level
}

// name is how a level's descriptors differ from each other.
func (n *descriptor) name() string {
	if n.Value == "" {
		return n.Key
	}
	return n.Key + "_" + n.Value
}

func (n *descriptor) isPattern() bool { return strings.Contains(n.name(), "*") }

// isBeginOf says whether a pattern of this key can match entries of another one: key "user", value
// "*" matches the key "user_x".
func (n *descriptor) isBeginOf(key string) bool { return strings.HasPrefix(key, n.Key+"_") }

// level draws descriptors of which all have other names.
func (d draws) level(depth int) (level []*descriptor) {
	for range 1 + d.IntN(5-depth/2) {
		n := d.descriptor(depth)
		if !slices.ContainsFunc(level, func(other *descriptor) bool { return other.name() == n.name() }) {
			level = append(level, n)
		}
	}
	return level
}

func (d draws) descriptor(depth int) *descriptor {
	n := &descriptor{Key: pick(d, drawnKeys...)}
	switch {
	case d.chance(30):
		n.Value = pick(d, drawnValues[:11]...)
	case d.chance(35):
		n.Value = pick(d, trailing...)
	case d.later && d.chance(20):
		n.Value = pick(d, anywhere...)
	}
	if d.metadata && n.isPattern() && slices.ContainsFunc(drawnKeys, n.isBeginOf) {
		n.Value = ""
	}
	if d.chance(65) {
		n.RateLimit = d.limit()
	}
	n.ShadowMode = d.chance(10)
	n.DetailedMetric = !d.metadata && d.chance(15)
	n.ValueToMetric = !d.metadata && d.chance(20)
	// Shared by a pattern of the key a_b, ("a", "b_c") and ("a_b", "c") are one to envoyproxy/ratelimit.
	n.ShareThreshold = n.isPattern() && !strings.Contains(n.Key, "_") && d.chance(40)
	if d.later {
		n.QuotaMode = d.chance(12)
		if d.metadata && d.chance(30) {
			n.Metadata = map[string]any{pick(d, "m1", "m2"): pick[any](d, "text", 3, true, []any{"x", 1}, oneObject)}
		}
	}
	if depth < 4 && d.chance(60-10*depth) {
		n.Descriptors = d.level(depth + 1)
	} else if n.RateLimit == nil && d.chance(75) {
		n.RateLimit = d.limit()
	}
	return n
}

// oneObject is the same in all limits: where two differ, envoyproxy/ratelimit adds the fields of the
// one to the configuration of the other.
var oneObject = map[string]any{"k": "v"}

// mostRequests is near the largest limit, and without a fraction in 32 bits: else NEAR_LIMIT_RATIO=1
// is beyond the limit in envoyproxy/ratelimit, and a counter of it goes below zero.
const mostRequests = 1<<32 - 256

func (d draws) limit() *rateLimit {
	l := &rateLimit{Unlimited: d.chance(10)}
	if !l.Unlimited {
		l.Unit = pick(d, drawnUnits...)
		l.Requests = pick[uint32](d, 0, 1, 2, 3, 5, 7, 10, 20, 100, 1000, mostRequests)
	}
	if d.chance(25) {
		l.Name = pick(d, limitNames...)
	}
	if d.chance(20) {
		for range 1 + d.IntN(2) {
			if name := pick(d, limitNames...); name != l.Name {
				l.Replaces = append(l.Replaces, nameOfLimit{name})
			}
		}
	}
	return l
}

// call draws a call, mostly of what the files have.
func (d draws) call(files []*configFile) *ratelimit.RateLimitRequest {
	of := pick(d, files...)
	request := &ratelimit.RateLimitRequest{Domain: of.Domain}
	if d.chance(4) {
		request.Domain = pick(d, "", "nobody", "no.body")
	}
	if d.chance(35) {
		request.HitsAddend = pick[uint32](d, 1, 2, 3, 5, 50, 1<<20)
		if d.chance(90) {
			request.HitsAddend = min(request.HitsAddend, 5)
		}
	}
	for range pick(d, 1, 1, 1, 2, 2, 3, 4, 0) {
		request.Descriptors = append(request.Descriptors, d.asked(of))
	}
	if len(request.Descriptors) > 1 && d.chance(10) {
		request.Descriptors[1] = request.Descriptors[0]
	}
	if len(request.Descriptors) == 0 && d.chance(80) {
		request.Descriptors = append(request.Descriptors, d.asked(of))
	}
	return request
}

// asked draws a descriptor of a call: a way down the tree, more or less.
func (d draws) asked(of *configFile) *common.RateLimitDescriptor {
	asked := &common.RateLimitDescriptor{}
	level := of.Descriptors
	for len(level) > 0 && len(asked.Entries) < 4 && (len(asked.Entries) == 0 || d.chance(75)) {
		n := pick(d, level...)
		entry := &common.RateLimitDescriptor_Entry{Key: d.filled(n.Key), Value: d.filled(n.Value)}
		if n.Value == "" || d.chance(10) {
			entry.Value = pick(d, drawnValues...)
		}
		if d.chance(5) {
			entry.Key = pick(d, drawnKeys...)
		}
		asked.Entries = append(asked.Entries, entry)
		level = n.Descriptors
	}
	if d.chance(7) && len(asked.Entries) < 4 {
		asked.Entries = append(asked.Entries,
			&common.RateLimitDescriptor_Entry{Key: pick(d, drawnKeys...), Value: pick(d, drawnValues...)})
	}
	if d.chance(1) {
		asked.Entries = nil
	}
	if d.chance(15) {
		asked.HitsAddend = wrapperspb.UInt64(pick[uint64](d, 0, 0, 1, 3, 10))
	}
	if d.chance(6) {
		unit := pick(d, slices.Sorted(maps.Keys(ownLimits))...)
		asked.Entries = append([]*common.RateLimitDescriptor_Entry{{Key: ownKey, Value: unit}},
			asked.Entries[:d.IntN(len(asked.Entries)+1)]...)
		asked.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: ownLimits[unit],
			Unit:            typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit]),
		}
	}
	return asked
}

// filled has a text in the place of each *.
func (d draws) filled(pattern string) string {
	var b strings.Builder
	for _, c := range pattern {
		if c == '*' {
			b.WriteString(pick(d, "", "a", "b", "1", "a/1", "x.y"))
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

const noMemory = "LOCAL_CACHE_SIZE_IN_BYTES=0"

// settings draws the settings of a service.
func (d draws) settings() []string {
	settings := []string{
		"MERGE_DOMAIN_CONFIG=true",
		"NEAR_LIMIT_RATIO=" + pick(d, "0.8", "0.8", "0.5", "1", "0", "0.33"),
		pick(d, noMemory, noMemory, "LOCAL_CACHE_SIZE_IN_BYTES=1048576"),
		"CACHE_KEY_PREFIX=" + pick(d, "", "p:"),
		fmt.Sprint("SHADOW_MODE=", d.chance(10)),
		fmt.Sprint("LIMIT_RESPONSE_HEADERS_ENABLED=", d.chance(70)),
		fmt.Sprint("RESPONSE_DYNAMIC_METADATA=", d.later && d.chance(40)),
		fmt.Sprint("QUOTA_MODE=", d.later && d.chance(10)),
	}
	if d.chance(30) {
		settings = append(settings, "LIMIT_LIMIT_HEADER=x-limit", "LIMIT_REMAINING_HEADER=x-remaining",
			"LIMIT_RESET_HEADER=x-reset")
	}
	return settings
}

// texts are the files as they are written.
func texts(t *testing.T, files map[string]*configFile) map[string]string {
	written := map[string]string{}
	for name, file := range files {
		text, err := yaml.Marshal(file)
		require.NoError(t, err)
		written[name] = string(text)
	}
	return written
}
