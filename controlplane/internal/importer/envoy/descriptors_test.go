package envoy

import (
	"strconv"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// reading has an import read a text as an object of Envoy.
func reading(t *testing.T, text string, readObject func(r *reader, n *policy.Node, at source.Place)) {
	t.Helper()
	in, err := source.Open(source.File{Name: "f", Text: []byte(text)})
	require.NoError(t, err, text)
	d := draft.New("test", "f", policy.ScopeProxy)
	require.NoError(t, read(d, Options{}, func(r *reader) error {
		readObject(r, in.Root, in.Top())
		return nil
	}), text)
}

// selected writes a selection as the match, the exemptions and why a rule for it is off.
func selected(t *testing.T, s request.Selection) (text string) {
	t.Helper()
	matchOf := func(m request.Match) string {
		n, err := yaml.Marshal(m)
		require.NoError(t, err)
		return strings.TrimSpace(string(n))
	}
	if match, _ := s.Match(); len(match) > 0 {
		text += " if " + matchOf(match)
	}
	for _, m := range s.Exempt() {
		text += " but " + matchOf(m)
	}
	for _, why := range s.WhyOff() {
		text += " is off: " + string(why)
	}
	return text
}

func TestDescriptorsOfARateLimit(t *testing.T) {
	const user = "{request_headers: {header_name: x-user, descriptor_key: user, skip_if_absent: true}}"
	const slow = "{generic_key: {descriptor_value: slow}}"
	unless := func(headers string) string {
		return "{header_value_match: {descriptor_value: other, expect_match: false, headers: [" + headers + "]}}"
	}
	const unlessWhy = "No match can select its requests: they must not match headers, and no exemption can say that."
	for _, tc := range []struct {
		name, rateLimit string
		want            []string
	}{
		{"an entry of each action", "actions: [{remote_address: {}}, " + slow + "]",
			[]string{"remote_address generic_key_slow"}},
		{"with the header and without", "actions: [{remote_address: {}}, " + user + "]",
			[]string{"remote_address user", "remote_address if {headers: {x-user: '!'}}"}},
		{"none without an entry", "actions: [" + user + "]", []string{"user"}},
		{"none of another stage", "{stage: 1, actions: [" + slow + "]}", nil},
		{"hits cost", "{hits_addend: {number: 3}, actions: [" + slow + "]}", []string{"generic_key_slow costs 3"}},
		{"no hits", "{hits_addend: {number: 0}, actions: [" + slow + "]}",
			[]string{"generic_key_slow is off: It asks and counts no hits, by hits_addend 0."}},
		{"when the response is complete", "{apply_on_stream_done: true, actions: [" + slow + "]}",
			[]string{"generic_key_slow is off: It counts when the response is complete, and denies nothing."}},
		{"but where headers match", "actions: [" + unless("{name: x-a, exact_match: v}, {name: x-b, prefix_match: w}") + "]",
			[]string{"header_match_other but {headers: {x-a: v, x-b: w*}}"}},
		{"but where headers match, of which no match can say one",
			"actions: [" + unless("{name: x-a, exact_match: v}, {name: x-b, range_match: {start: 1, end: 2}}") + "]",
			[]string{"header_match_other is off: No match can select its requests: they have an unknown condition on the " +
				"header x-b. is off: " + unlessWhy}},
		{"but where a header meets conditions that do not join",
			"actions: [" + unless("{name: x-a, prefix_match: a}, {name: x-a, suffix_match: z}") + "]",
			[]string{"header_match_other is off: No match can select its requests: they have two conditions on header x-a. " +
				"is off: " + unlessWhy}},
		{"but where an inverted header matches",
			"actions: [" + unless("{name: x-a, exact_match: v, invert_match: true}") + "]",
			[]string{"header_match_other is off: " + unlessWhy}},
	} {
		reading(t, tc.rateLimit, func(r *reader, n *policy.Node, at source.Place) {
			var got []string
			var sent []descriptor.Descriptor
			for _, l := range r.withStage(0, []rateLimit{{decode[*routev3.RateLimit](r, n, at), at}}) {
				sent = append(sent, r.readRateLimit(l)...)
			}
			for _, d := range sent {
				text := ""
				for _, e := range d.Entries {
					text += " " + e.String()
				}
				if d.Cost > 0 {
					text += " costs " + strconv.FormatUint(d.Cost, 10)
				}
				got = append(got, strings.TrimSpace(text+selected(t, d.Requests)))
			}
			require.Equal(t, tc.want, got, tc.name)
		})
	}
}
