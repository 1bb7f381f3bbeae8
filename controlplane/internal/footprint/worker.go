package footprint

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// A worker's memory doubles when the collector leaves less than a third of its heap free, or no place that is long
// enough (alloc and growHeap of TinyGo's runtime), and it never shrinks. The first alone makes up to three times of
// what is in use. With the second, five times were measured: 32 MiB for 6 MiB in use. So a figure is six times what
// its part uses where nothing else is said.
//
// Whether one more byte doubles the memory depends on all that is in use. So a part by itself may make the memory
// grow by more than its figure. The sum of all figures is the bound.
const grows = 6

const (
	// emptyBytes is the most that a worker without rules has: its constants and its stack, twice, and three times
	// the 105 KB of its heap that are in use and the 192 KB that it keeps for what the proxy returns.
	emptyBytes = 1400 << 10
	// A worker keeps readRuleBytes of each rule that it has read, and readTextBytes for each byte of the policy's
	// text: a short path in a list takes most.
	readRuleBytes = 2 << 10
	readTextBytes = 36
	// A rule keeps subjectBytes of a request for the next one, what became of it in metrics included. Beside them
	// it has its logs and three pages: an empty one, the one that it has read and a copy. logBytes is a log of the
	// longest kind with room for a hit that is as long.
	subjectBytes = 6 << 10
	logBytes     = 2 * limit.MaxLog * 8
)

// ruleBytes is the most that the rules take in a worker: what it has read, and what is kept of a request to which
// all of them apply. It counts twice, and so do the keys denied most, because the policy before is still there while
// its last requests run. Requests that wait for the quota service are not in it.
func ruleBytes(p *policy.Policy, textBytes int) uint64 {
	uses := uint64(readTextBytes * textBytes)
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Mode != policy.ModeOff {
			uses += readRuleBytes + decidedBytes(r)
		}
	}
	return emptyBytes + grows*2*uses + denialBytes(p)
}

// decidedBytes is what a rule keeps of a request.
func decidedBytes(r *policy.Rule) uint64 {
	bytes := uint64(subjectBytes)
	if len(r.Limits) == 0 {
		return bytes
	}
	bytes += 3 * localTable(r).pageBytes
	if r.Scope == policy.ScopeCluster && !r.Holds() {
		bytes += 3 * leaseTable(r).pageBytes
	}
	logs := uint64(0)
	for _, w := range r.Windows() {
		if w.Algorithm == limit.SlidingWindowLog {
			logs++
		}
	}
	if logs > 0 {
		bytes += (logs + 1) * logBytes // and that of another key of the page
	}
	return bytes
}

// denialBytes is the most that the keys denied most take in a worker.
func denialBytes(p *policy.Policy) uint64 {
	if p.ReportKeys == policy.ReportOff {
		return 0
	}
	rules := 0
	for i := range p.Rules {
		if p.Rules[i].Mode != policy.ModeOff {
			rules++
		}
	}
	return top.MaxBytes(rules)
}

// expressionBytes is the most that a worker's memory grows by for the regular
// expressions: three times their tables, what compiling takes until it is collected, and
// the places between the tables that are too short for anything else. The filter's memory
// doubles where the collector finds no place that is long enough.
func expressionBytes(p *policy.Policy) uint64 {
	const (
		making    = 256 << 10
		collected = 8 << 20
		between   = 5 << 10
	)
	n := p.Expressions
	return uint64(2 * (3*p.ExpressionBytes + min(n*making, collected) + n*between))
}
