package talk

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// largest is a part that takes as much of a message as a part can.
func largest(d *quota.Definition, key byte) lease.Part {
	return lease.Part{Definition: d, Wire: quota.Part{
		Definition: d.ID, Key: [16]byte{key}, Cost: math.MaxUint32, Waiting: math.MaxUint32, Ahead: math.MaxUint32,
		Uncharged: math.MaxUint32, Shadow: true, NoBlock: true,
		Report: quota.Report{
			Worker: math.MaxUint64, Held: math.MaxUint32, Charged: math.MaxUint64, Known: math.MaxUint64,
			Since: math.MaxUint64, Number: math.MaxUint64,
		},
	}}
}

// A stream has had one definition less than the service remembers, and an ask brings two, so that all are forgotten.
// Then its other parts need room for their definitions, too.
func TestAnAskThatBringsADefinitionTooManyHasRoomForAllOfItsOwn(t *testing.T) {
	c := Client{
		worker: &lease.Worker{}, stream: stream{phase: greeted, defined: map[uint32]bool{}}, asks: newAskList(),
		lastID: math.MaxUint32 - 10_000,
	}
	window := limit.Window{
		Algorithm: limit.Concurrency, Limit: math.MaxUint32, Burst: math.MaxUint32, PeriodNs: math.MaxInt64,
		OffsetNs: math.MaxInt64, Jitter: 100, Elastic: true, Unlimited: true, Units: math.MaxUint16,
	}
	var parts []lease.Part // of the first two, the stream has not had the definitions
	for i := range uint32(quota.MaxParts) {
		d := &quota.Definition{ID: math.MaxUint32 - i, Windows: slices.Repeat([]limit.Window{window}, quota.MaxWindows)}
		parts = append(parts, largest(d, 0))
		if i >= 2 {
			c.stream.defined[d.ID] = true
		}
	}
	for id := uint32(0); len(c.stream.defined) < quota.MaxDefinitions-1; id++ {
		c.stream.defined[id] = true
	}
	size := quota.MaxParts*partBytes + 2*windowBytes*(1+quota.MaxWindows)
	for i := range (roomBytes - size) / partBytes {
		c.asks.askForNobody([]lease.Part{largest(&quota.Definition{ID: uint32(i)}, 1)})
	}
	c.asks.join(&Waiter{}, parts)

	c.pack(0)
	require.Greater(t, len(c.outMessage.Asks), mostAsks/2)
	require.LessOrEqual(t, len(c.outMessage.Append(nil)), quota.MaxMessageBytes)

	c.pack(0)
	require.Len(t, c.outMessage.Asks, 1)
	require.Empty(t, c.asks.queue)
	require.Len(t, c.outMessage.Definitions, quota.MaxParts)
	require.LessOrEqual(t, len(c.outMessage.Append(nil)), quota.MaxMessageBytes)
}

// Reports that are late leave the room to others: a key whose store does not answer delays no report of another one.
func TestLateReportsTakeNoRoom(t *testing.T) {
	c := Client{asks: newAskList()}
	windows := []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: 1}}
	book := account.NewBook()
	for i := range mostAsks {
		d := &quota.Definition{ID: uint32(i), Windows: windows}
		c.asks.askForNobody([]lease.Part{lease.ReportPart(book.Open(d, [16]byte{byte(i), byte(i >> 8)}, 0))})
	}
	require.Zero(t, c.roomForReports())
	c.asks.fly(slices.Clone(c.asks.queue))
	require.Zero(t, c.roomForReports())
	c.asks.makeLate(100, 100)
	require.Equal(t, mostAsks, c.roomForReports())
}
