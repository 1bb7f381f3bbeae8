package redisstore

import (
	"math"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
)

// maxMicros is beyond every clock, and exact in Lua.
const maxMicros = 1<<53 - 1

// between returns the first and the last microsecond of the store's clock at which
// the swap holds.
func between(w *quota.Swap) (first, last int64) {
	first = ceilDiv(addSaturated(w.AtNs, -w.SlackNs), 1000)
	last = min(floorDiv(addSaturated(w.AtNs, w.SlackNs), 1000), ceilDiv(w.UntilNs, 1000)-1)
	return inLua(first), inLua(last)
}

func inLua(micros int64) int64 { return min(max(micros, -maxMicros), maxMicros) }

// expiry is the millisecond at which the value may be forgotten; Redis knows none
// before 1.
func expiry(w *quota.Swap) int64 { return max(ceilDiv(w.ExpireNs, 1_000_000), 1) }

func addSaturated(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
