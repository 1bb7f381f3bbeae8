package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// purse is a source with units of its own. Another worker takes loses of them
// between read and take.
type purse struct {
	records
	left, loses uint32
}

func (p *purse) read(a *Attempt, now int64, again bool) outcome {
	p.records.read(a, now, again)
	if a.Cost > p.left {
		a.passNs = limit.Never
		return short
	}
	return granted
}

func (p *purse) take(a *Attempt) outcome {
	if p.loses > 0 {
		p.left, p.loses = p.left-p.loses, 0
		return raced
	}
	p.left -= a.Cost
	return granted
}

func (p *purse) refund(a *Attempt, _ int64) bool {
	p.left += a.Cost
	return true
}

// A rule decides by whatever source it has: it takes what a request costs, and
// refunds it when another rule denies.
func TestAnotherSourceOfUnits(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"first","limits":["100/1h"],"cost":2},{"name":"second","limits":["100/1h"]}`)
	first, second := &purse{left: 5}, &purse{left: 3}
	first.records, e.rules[0].units = records{table: e.rules[0].table}, first
	second.records, e.rules[1].units = records{table: e.rules[1].table}, second
	require.True(t, e.Decide().Allowed)
	require.Equal(t, []uint32{3, 2}, []uint32{first.left, second.left})

	second.loses = 2
	v := e.Decide()
	require.Equal(t, "second", v.DeniedBy().Name, "it lost its last units after the check")
	require.Equal(t, limit.Never, v.RetryNs)
	require.Equal(t, []uint32{3, 0}, []uint32{first.left, second.left}, "the first rule's are refunded")

	first.left, second.left = 1, 9
	require.Equal(t, "first", e.Decide().DeniedBy().Name)
	require.Equal(t, []uint32{1, 9}, []uint32{first.left, second.left}, "nothing is taken")
}
