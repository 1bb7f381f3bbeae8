package quota

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

func example() *record {
	windows := []limit.Window{
		{Algorithm: limit.FixedWindow, PeriodNs: second, OffsetNs: 5 * ms, Jitter: 10, Limit: 9},
		{Algorithm: limit.FixedWindowPerKey, PeriodNs: minute, Elastic: true, Limit: 9},
		{Algorithm: limit.SlidingWindowLog, PeriodNs: minute, Limit: 9, Units: 9},
		{Algorithm: limit.SlidingWindowCounter, PeriodNs: minute, Limit: 9},
		{Algorithm: limit.TokenBucket, PeriodNs: minute, Limit: 9, Burst: 9},
	}
	r := &record{generation: 0x0102030405060708, State: lease.NewState(base, windows)}
	r.Add(2, lease.Terms{})
	r.Roll(base + second/2)
	r.Add(1, lease.Terms{EndNs: base + second})
	return r
}

// TestValueBytes: what a release has written, the next must read.
func TestValueBytes(t *testing.T) {
	b := example().append(nil, 0x1112131415161718)
	require.Equal(t, ""+
		"1817161514131211"+"01"+"0807060504030201"+"0065b171d0a29717"+"00ca7e8fd0a29717"+"05", hex.EncodeToString(b[:headBytes]))
	require.Equal(t, "018094ebdc03c096b1020a0001c0aaacfe88dae8cb170280b09dc2df010000030380fae2cfe6dbe8cb170380b09dc2df01000000028080909f85dae8cb17028094ebdc03010480b09dc2df0100000003000580b09dc2df010000000909008090efdfcfdae8cb170080d4f4d0de0a", hex.EncodeToString(b[headBytes:]))
}

func TestValueComesBack(t *testing.T) {
	r := example()
	b := r.append(nil, 1)
	got, err := parse(b)
	require.NoError(t, err)
	require.Equal(t, r.generation, got.generation)
	require.Equal(t, r.Usages, got.Usages)
	require.Equal(t, r.NowNs, got.NowNs)
	for i := range r.Windows {
		require.True(t, same(r.Windows[i], got.Windows[i]))
		require.Equal(t, r.Stamp(i), got.Stamp(i))
	}
	for n := range b {
		_, err := parse(b[:n])
		require.ErrorIs(t, err, errDamage, "%d bytes", n)
	}
	_, err = parse(append(b, 0))
	require.ErrorIs(t, err, errDamage)
	b[NonceBytes] = holding + 1
	_, err = parse(b)
	require.ErrorIs(t, err, errNewer)
}

func FuzzValue(f *testing.F) {
	f.Add(example().append(nil, 1))
	f.Add((&record{}).append(nil, 2))
	f.Add(heldExample().append(nil, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b)
		if err != nil {
			return
		}
		again, err := parse(r.append(nil, 3))
		require.NoError(t, err)
		require.Equal(t, r, again)
		d := lease.Definition{Windows: example().Windows, Lease: lease.LeaseAuto}
		o := operation{kinds: d.Windows, windows: d.Windows, lease: d.Lease, part: lease.Part{Cost: 1, Waiting: 3, Ahead: 9}}
		o.carryOut(r, base) // any value can be decided on
	})
}
