package importer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// bucket is a descriptor of the local filter: a value for each of its keys,
// empty for any. Each has another burst, which names it.
type bucket struct {
	keys, values []string
	burst        int
}

// Envoy takes the descriptor with exactly the request's values, else one with
// empty values that fits. Here only first values are empty, so that there is
// never a choice between two of those.
func TestDecidesAsTheLocalFilter(t *testing.T) {
	sequences := [][]string{{"ka"}, {"kb"}, {"ka", "kb"}, {"kb", "ka"}, {"kc", "ka"}}
	decidesAs(t, 15, "local-ratelimit", func(r *rand.Rand) (string, func() (map[string]string, []string)) {
		yaml := &strings.Builder{}
		yaml.WriteString(`stat_prefix: all
token_bucket: {max_tokens: 5000000, tokens_per_fill: 1, fill_interval: 3600s}
filter_enabled: {default_value: {numerator: 100}}
filter_enforced: {default_value: {numerator: 100}}
rate_limits:
`)
		for _, keys := range sequences {
			yaml.WriteString("  - actions:\n")
			for _, key := range keys {
				fmt.Fprintf(yaml, "      - request_headers: {header_name: x-%s, descriptor_key: %s}\n", key, key)
			}
		}
		yaml.WriteString("descriptors:\n")
		var buckets []bucket
		for range 1 + r.IntN(12) {
			b := bucket{keys: sequences[r.IntN(len(sequences))], burst: 1_000_000 + len(buckets)}
			for i := range b.keys {
				b.values = append(b.values, []string{"x", "y", "z*", ""}[r.IntN(4-i)])
			}
			if slices.ContainsFunc(buckets, func(o bucket) bool { return slices.Equal(o.keys, b.keys) && slices.Equal(o.values, b.values) }) {
				continue
			}
			buckets = append(buckets, b)
			yaml.WriteString("  - entries:\n")
			for i := range b.keys {
				fmt.Fprintf(yaml, "      - {key: %s, value: %q}\n", b.keys[i], b.values[i])
			}
			fmt.Fprintf(yaml, "    token_bucket: {max_tokens: %d, tokens_per_fill: 1, fill_interval: %ds}\n", b.burst, 3600*(1+r.IntN(2)))
		}
		used := map[string]int{}
		return yaml.String(), func() (map[string]string, []string) {
			headers := map[string]string{}
			for _, key := range []string{"ka", "kb", "kc"} {
				if v := []string{"-", "x", "y", "z*", "zz"}[r.IntN(5)]; v != "-" {
					headers["x-"+key] = v
				}
			}
			used["all"]++
			list := []string{fmt.Sprintf("5000000 used %d", used["all"])}
			for _, keys := range sequences {
				if line := taken(buckets, keys, headers, used); line != "" {
					list = append(list, line)
				}
			}
			return headers, list
		}
	})
}

// taken takes a token for one descriptor of a request; "" where none is asked.
func taken(buckets []bucket, keys []string, headers map[string]string, used map[string]int) string {
	var values []string
	for _, key := range keys {
		v, ok := headers["x-"+key]
		if !ok {
			return ""
		}
		values = append(values, v)
	}
	at := slices.IndexFunc(buckets, func(b bucket) bool { return slices.Equal(b.keys, keys) && slices.Equal(b.values, values) })
	if at < 0 { // of values that are empty the first one is
		at = slices.IndexFunc(buckets, func(b bucket) bool {
			return slices.Equal(b.keys, keys) && b.values[0] == "" && slices.Equal(b.values[1:], values[1:])
		})
	}
	if at < 0 {
		return ""
	}
	counter := fmt.Sprint(at, values)
	used[counter]++
	return fmt.Sprintf("%d used %d", buckets[at].burst, used[counter])
}
