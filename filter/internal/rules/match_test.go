package rules

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
)

// Match.Holds asks first about what has been read, and then about what has not. If to ask about one value read another
// one, neither pass would ask about that, and a match would hold without it.
func TestToAskAboutAValueReadsNoOther(t *testing.T) {
	proxy := hosttest.New()
	proxy.With("host", "example.com", "x-forwarded-for", "192.0.2.7, 192.0.2.8", "x-user", "alice")
	proxy.Attributes = map[string]string{"source.address": "192.0.2.9:4711"}
	r := request.New(proxy)
	numbers := map[string]int{}
	for _, name := range []string{"host", "x-forwarded-for", "x-user"} {
		numbers[name] = r.HeaderNumber(name)
	}
	type value struct {
		ask   func()
		known func() bool
	}
	values := map[string]value{
		"method": {func() { r.Method() }, r.KnowsMethod},
		"hosts":  {func() { r.Hosts() }, r.KnowsHost},
		"paths":  {func() { r.Paths() }, r.KnowsPath},
		"client": {func() { r.Client() }, r.KnowsClient},
	}
	for name, number := range numbers {
		ask := func() {
			r.JoinedHeader(number)
			r.Values(number)
		}
		values[name] = value{ask, func() bool { return r.KnowsJoinedHeader(number) }}
	}
	for _, asked := range slices.Sorted(maps.Keys(values)) {
		r.Begin()
		values[asked].ask()
		for name, v := range values {
			require.Equal(t, name == asked, v.known(), "%s, when %s is asked about", name, asked)
		}
	}
}
