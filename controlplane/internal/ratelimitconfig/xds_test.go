package ratelimitconfig_test

import (
	"testing"

	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

func fromXDS(t *testing.T, text string) (*ratelimitconfig.Config, error) {
	t.Helper()
	resource := &rlsconfv3.RateLimitConfig{}
	require.NoError(t, protojson.Unmarshal([]byte(text), resource))
	return ratelimitconfig.FromXDS(resource)
}

// A resource makes the same tree as a file with the same fields.
func TestAResourceSaysWhatAFileSays(t *testing.T) {
	resource, err := fromXDS(t, `{"name": "r", "domain": "d", "descriptors": [
		{"key": "a", "value": "1", "shadow_mode": true, "quota_mode": true, "detailed_metric": true,
		 "metadata": {"team": "x"},
		 "rate_limit": {"unit": "WEEK", "requests_per_unit": 3, "name": "n", "replaces": [{"name": "m"}]},
		 "descriptors": [{"key": "b", "rate_limit": {"unlimited": true}}]},
		{"key": "c", "value": "x*y"}]}`)
	require.NoError(t, err)
	file, err := read(t, `
domain: d
descriptors:
  - key: a
    value: 1
    shadow_mode: true
    quota_mode: true
    detailed_metric: true
    metadata: {team: x}
    rate_limit: {unit: week, requests_per_unit: 3, name: n, replaces: [{name: m}]}
    descriptors: [{key: b, rate_limit: {unlimited: true}}]
  - {key: c, value: x*y}
`)
	require.NoError(t, err)
	require.Equal(t, "r", resource.File)
	require.Equal(t, withoutPlaces(file.Descriptors), withoutPlaces(resource.Descriptors))
	require.Equal(t, file.Domain, resource.Domain)
	require.Equal(t, file.CountDenied, resource.CountDenied)
}

// withoutPlaces copies a tree without lines, and with metadata that compares.
func withoutPlaces(list []*ratelimitconfig.Descriptor) (copied []ratelimitconfig.Descriptor) {
	for _, d := range list {
		c := *d
		c.Line, c.Column = 0, 0
		c.Descriptors = nil
		if c.Metadata != nil {
			c.Value += c.Metadata.GetFields()["team"].GetStringValue()
			c.Metadata = nil
		}
		copied = append(append(copied, c), withoutPlaces(d.Descriptors)...)
	}
	return copied
}

func TestRefusesResourcesThatTheServiceRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                                   "r: domain: is missing: a configuration has a domain",
		`{"domain": "d", "descriptors": [{}]}`: "r: descriptors[0]: a descriptor needs a key",
		`{"domain": "d", "descriptors": [{"key": "a", "value": "1"}, {"key": "a_1"}]}`: "r: descriptors[1]: the " +
			"descriptor a_1 is given twice: keep one",
		`{"domain": "d", "descriptors": [{"key": "a", "descriptors": [{"key": "b", "rate_limit": {}}]}]}`: "r: " +
			"descriptors[0].descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, not " +
			`"unknown"`,
		`{"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "DAY", "replaces": [{}]}}]}`: "r: " +
			"descriptors[0].rate_limit.replaces[0].name: must name a limit",
		`{"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unlimited": true, "unit": "DAY"}}]}`: "r: " +
			"descriptors[0].rate_limit.unit: does not go with unlimited: keep one of the two",
	} {
		resource := &rlsconfv3.RateLimitConfig{}
		require.NoError(t, protojson.Unmarshal([]byte(text), resource))
		resource.Name = "r"
		_, err := ratelimitconfig.FromXDS(resource)
		require.EqualError(t, err, want)
	}
}

// A resource may nest as deep as a file, and one that is deeper takes little memory.
func TestAResourceMayNotNestDeeperThanAFile(t *testing.T) {
	nested := func(levels int) *rlsconfv3.RateLimitConfig {
		var list []*rlsconfv3.RateLimitDescriptor
		for range levels {
			list = []*rlsconfv3.RateLimitDescriptor{{Key: "a", Descriptors: list}}
		}
		return &rlsconfv3.RateLimitConfig{Name: "r", Domain: "d", Descriptors: list}
	}
	_, err := ratelimitconfig.FromXDS(nested(15))
	require.NoError(t, err)
	for _, levels := range []int{16, 9_000} {
		_, err = ratelimitconfig.FromXDS(nested(levels))
		require.ErrorContains(t, err, "descriptors[0].descriptors: descriptors nest more than 15 levels deep")
	}
}
