package engine

import (
	"testing"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

type (
	proxy = hosttest.Proxy
	cell  = hosttest.Cell
)

// What package respond writes. That package imports the engine, so
// describe_test.go hands it in.
var (
	report func(*decide.Verdict) string
	fields func(policy.Headers, *decide.Verdict) []Field
	answer func(Result) string
)

// Field is a describe.Field.
type Field struct{ Name, Value string }

// Describe sets what the tests call report, fields and answer.
func Describe(r func(*decide.Verdict) string, f func(policy.Headers, *decide.Verdict) []Field, a func(Result) string) {
	report, fields, answer = r, f, a
}

func compileJSON(t testing.TB, host Host, rules string) *Engine {
	t.Helper()
	return New(hosttest.Policy(t, rules), host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

// retries are what a hit has; see package decide.
const retries = 256

// ceilDiv divides and rounds up.
func ceilDiv(n, by int64) int64 { return (n + by - 1) / by }
