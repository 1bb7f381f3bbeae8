package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// managed is a policy's field that sets the management token to the tests' token.
const managed = "manage: {path: /.sluice/, token_sha256: " + tokenSHA256 + "}\n"

// oneRule returns a policy of one rule that limits each value of x-user-id.
func oneRule(fields string) string {
	return "version: 1\nrules: [{name: per-user, key: [{header: x-user-id}], " + fields + "}]\n" + managed
}

// eachSeparately is each on proxies that only these tests share. Other tests run a
// filter of an earlier commit, which cannot read a directory with an algorithm that
// it does not know.
func eachSeparately(t *testing.T, scenario func(t *testing.T, d driver)) {
	each(t, func(t *testing.T, d driver) { scenario(t, separate(d)) })
}

func separate(d driver) driver {
	d.name += "-algorithms"
	return d
}

// Each algorithm admits exactly its limit of a burst over four workers. The windows
// do not end during the test, and the buckets gain nothing.
func TestAlgorithms(t *testing.T) {
	const sent = 900
	for _, tc := range []struct {
		name   string
		fields string
		want   int // admitted requests of one key's burst
		used   int // the key's usage afterwards, 0 = want
	}{
		{name: "fixed window", fields: "limits: [400/" + far + "]", want: 400},
		{name: "fixed window, offset", fields: "limits: [{requests: 400, per: " + far + ", offset: 4d}]", want: 400},
		{name: "fixed window, jitter", fields: "limits: [{requests: 400, per: " + far + ", jitter: 50%}]", want: 400},
		{name: "fixed window, count_denied", fields: "count_denied: true, limits: [400/" + far + "]", want: 400, used: sent},
		{name: "per key", fields: "algorithm: fixed_window_per_key, limits: [400/" + far + "]", want: 400},
		{name: "per key, elastic", fields: "algorithm: fixed_window_per_key, limits: [{requests: 400, per: 1h, elastic: true}]", want: 400},
		{
			name:   "per key, elastic, count_denied",
			fields: "count_denied: true, algorithm: fixed_window_per_key, limits: [{requests: 400, per: 1h, elastic: true}]", want: 400, used: sent,
		},
		{name: "sliding log", fields: "algorithm: sliding_window_log, limits: [512/" + far + "]", want: 512},
		{name: "sliding log, count_denied", fields: "count_denied: true, algorithm: sliding_window_log, limits: [300/" + far + "]", want: 300},
		{name: "sliding counter", fields: "algorithm: sliding_window_counter, limits: [400/" + far + "]", want: 400},
		{name: "sliding counter, count_denied", fields: "count_denied: true, algorithm: sliding_window_counter, limits: [400/" + far + "]", want: 400, used: sent},
		{name: "token bucket", fields: "algorithm: token_bucket, limits: [{requests: 1, per: " + far + ", burst: 400}]", want: 400},
		{name: "token bucket of its requests", fields: "algorithm: token_bucket, limits: [7/" + far + "]", want: 7},
		{name: "cost", fields: "cost: 3, algorithm: sliding_window_log, limits: [500/" + far + "]", want: 166, used: 498},
		{name: "limit 0", fields: "algorithm: token_bucket, limits: [0/1h]", want: 0},
		{name: "layered", fields: `limits: [
			900/` + far + `, {requests: 800, per: 1h, algorithm: fixed_window_per_key},
			{requests: 400, per: 1h, algorithm: sliding_window_log}, {requests: 500, per: ` + far + `, algorithm: sliding_window_counter},
			{requests: 1, per: ` + far + `, burst: 600, algorithm: token_bucket}]`, want: 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachSeparately(t, func(t *testing.T, d driver) {
				s := serve(t, d, oneRule(tc.fields))
				got := s.load(16).send(t, sent, user("alice"))
				require.Equal(t, tc.want, count(got, allowed))
				require.Equal(t, sent-tc.want, count(got, denied))
				used := tc.used
				if used == 0 {
					used = tc.want
				}
				answer := s.operate(t, "get", "rule=per-user&key=alice")
				require.EqualValues(t, used, answer.Value)
				for _, w := range answer.Windows {
					require.EqualValues(t, used, w.Used, "no window has a phantom count")
				}
			})
		})
	}
}
