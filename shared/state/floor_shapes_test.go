package state

import "github.com/sluice-ratelimit/sluice/shared/limit"

func elastic(period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindowPerKey, PeriodNs: period, Elastic: true}
}

func jittered(period int64, percent uint8) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, PeriodNs: period, Jitter: percent}
}

func slidingLog(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowLog, Limit: units, PeriodNs: period, Units: uint16(units)}
}

func slidingCounter(units uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.SlidingWindowCounter, Limit: units, PeriodNs: period}
}

func tokenBucket(burst, requests uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.TokenBucket, Limit: requests, PeriodNs: period, Burst: burst}
}

// floorShapes are the mixes of windows for the runs, without limits: each
// algorithm alone, layered with itself, and layered with others.
var floorShapes = [][]limit.Window{
	{aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 13*tick)},
	{perKey(0, 20*tick)},
	{perKey(0, 20*tick), perKey(0, 31*tick)},
	{aligned(0, 7*tick, 0), aligned(0, 20*tick, 3*tick)},
	{perKey(0, 13*tick), aligned(0, 20*tick, 0)},
	{aligned(0, 20*tick, 0), perKey(0, 20*tick)},
	{aligned(0, 11*tick, 0), perKey(0, 20*tick), aligned(0, 43*tick, 5*tick)},
	{elastic(20 * tick)},
	{jittered(20*tick, 100)},
	{jittered(20*tick, 40), perKey(0, 31*tick)},
	{slidingLog(0, 20*tick)},
	{slidingLog(0, 13*tick), slidingLog(0, 31*tick)},
	{slidingCounter(0, 20*tick)},
	{slidingCounter(0, 7*tick), aligned(0, 20*tick, 0)},
	{tokenBucket(0, 0, 20*tick)},
	{tokenBucket(0, 0, 7*tick), tokenBucket(0, 0, 31*tick)},
	{tokenBucket(0, 0, 7*tick), aligned(0, 20*tick, 0)},
	{slidingLog(0, 13*tick), slidingCounter(0, 20*tick), tokenBucket(0, 0, 20*tick), jittered(31*tick, 50), elastic(7 * tick)},
}
