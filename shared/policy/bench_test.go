package policy_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A policy near the largest: what reading it costs in a worker's configuration.
func BenchmarkRead(b *testing.B) {
	var rules []string
	for i := range 5_000 {
		rules = append(rules, `{"name":"rule-`+strconv.Itoa(i)+`","match":{"paths":["/v`+strconv.Itoa(i)+`/*"],"hosts":["a.example.com"]},"key":[{"header":"x-user-id"},"client_ip"],"limits":["10/1s",{"requests":1000,"per":"1d"}]}`)
	}
	data := []byte(`{"version":1,"rules":[` + strings.Join(rules, ",") + `]}`)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		n, err := policy.ParseJSON(data)
		require.NoError(b, err)
		_, errs := policy.Read(n)
		require.Empty(b, errs)
	}
}
