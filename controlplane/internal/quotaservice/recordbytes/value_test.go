package recordbytes

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     = 1_000_000
	second = 1000 * ms
	minute = 60 * second
	// base is a midnight; all grids of whole seconds have a start there.
	base = 1_700_006_400 * second
)

// viewOf returns the record as a definition with these windows sees it.
func viewOf(r *balance.Record, windows []limit.Window) balance.View {
	v, err := r.ArrangeFor(balance.KeyWindows{Defined: windows, Shifted: windows}, nil, 0)
	if err != nil {
		panic(err)
	}
	return v
}

func example() *balance.Record {
	windows := []limit.Window{
		{Algorithm: limit.FixedWindow, PeriodNs: second, OffsetNs: 5 * ms, Jitter: 10, Limit: 9},
		{Algorithm: limit.FixedWindowPerKey, PeriodNs: minute, Elastic: true, Limit: 9},
		{Algorithm: limit.SlidingWindowLog, PeriodNs: minute, Limit: 9, Units: 9},
		{Algorithm: limit.SlidingWindowCounter, PeriodNs: minute, Limit: 9},
		{Algorithm: limit.TokenBucket, PeriodNs: minute, Limit: 9, Burst: 9},
	}
	r := balance.NewRecord(base, windows...)
	r.Generation = 0x0102030405060708
	v := viewOf(r, windows)
	v.Add(2)
	r.Roll(base + second/2)
	v.Take(1, base+second)
	return r
}

func heldExample() *balance.Record {
	r := example()
	r.Windows[0].Pays = 9
	r.HasHolders = true
	r.Holders = balance.Holders{
		{Worker: 0x0102030405060708, Since: 1, Number: 300, Charged: 5, Held: 2, NotedNs: r.NowNs - ms, HoldNs: 80 * second},
		{Worker: 9, Since: 2, Number: 3, NotedNs: r.NowNs, HoldNs: 80 * second},
	}
	return r
}

// blockedExample is a record whose key is blocked for a minute more.
func blockedExample(hasHolders bool) *balance.Record {
	windows := []limit.Window{{Algorithm: limit.FixedWindow, Limit: 9, PeriodNs: second}, limit.NewBlock(minute, true)}
	r := balance.NewRecord(base, windows...)
	r.Generation = 0x0102030405060708
	v := viewOf(r, windows)
	v.BeginBlock()
	r.HasHolders = hasHolders
	return r
}

// TestValues: what a release has written, the next must read.
func TestValues(t *testing.T) {
	const nonce = "1817161514131211"
	const plain = "0807060504030201" + "0065b171d0a29717" + "00ca7e8fd0a29717" + // generation, time, spendBy
		"05" + // windows, by algorithm
		"018094ebdc03c096b1020a0001c0aaacfe88dae8cb17" +
		"0280b09dc2df010000030380fae2cfe6dbe8cb17" +
		"0380b09dc2df01000000028080909f85dae8cb17028094ebdc0301" +
		"0480b09dc2df010000000300" +
		"0580b09dc2df010000000909008090efdfcfdae8cb170080d4f4d0de0a"
	const blocked = "0807060504030201" + "0000e453d0a29717" + "0000e453d0a29717" + "02" +
		"018094ebdc03000000" + "0000" + "0880b09dc2df0100000101" + "80b0ade1e4dbe8cb17"
	for r, want := range map[*balance.Record]string{
		example(): nonce + "01" + plain,
		heldExample(): nonce + "02" + plain + "0900000000" + "00" + "02" + // pays, 0, holders
			"080706050403020101ac020502c0843d80c0fc82aa02" +
			"0900000000000000020300000080c0fc82aa02",
		blockedExample(false): nonce + "03" + blocked,
		blockedExample(true):  nonce + "04" + blocked + "0000" + "00" + "00",
	} {
		b := Append(nil, r, 0x1112131415161718)
		require.Equal(t, want, hex.EncodeToString(b))
		got, err := Parse(b)
		require.NoError(t, err)
		require.Equal(t, []any{r.Generation, r.NowNs}, []any{got.Generation, got.NowNs})
		require.Equal(t, r.Usages, got.Usages)
		require.Equal(t, r.SpendByNs(), got.SpendByNs())
		require.Equal(t, r.Holders, got.Holders)
		require.Equal(t, r.HasHolders, got.HasHolders)
		for i := range r.Windows {
			require.True(t, r.Windows[i].Same(got.Windows[i]))
			if r.Windows[i].Algorithm == limit.TokenBucket {
				require.Equal(t, r.Windows[i].Limit, got.Windows[i].Limit)
				require.Equal(t, r.Windows[i].Burst, got.Windows[i].Burst)
			}
			require.Equal(t, r.Windows[i].Pays, got.Windows[i].Pays)
		}
		for n := range b {
			got, err := Parse(b[:n])
			require.ErrorIs(t, err, ErrDamage, "%d bytes", n)
			require.Nil(t, got)
		}
		_, err = Parse(append(b, 0))
		require.ErrorIs(t, err, ErrDamage)
		b[NonceBytes] = newestVersion + 1
		_, err = Parse(b)
		require.ErrorIs(t, err, ErrNewer)
	}
	b := Append(nil, blockedExample(false), 1)
	b[NonceBytes] = plainVersion + withHolders
	_, err := Parse(b)
	require.ErrorIs(t, err, ErrDamage, "no such version has a block")
}

func FuzzValue(f *testing.F) {
	f.Add(Append(nil, example(), 1))
	f.Add(Append(nil, &balance.Record{}, 2))
	f.Add(Append(nil, heldExample(), 1))
	f.Add(Append(nil, blockedExample(true), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(Append(nil, r, 3))
		require.NoError(t, err)
		require.Equal(t, r, again)
		r.BringTo(base) // any value can be decided on
		windows := example().Windows
		v, err := r.ArrangeFor(balance.KeyWindows{Defined: windows, Shifted: windows}, nil, 0)
		if err != nil {
			return
		}
		p := quota.Part{Cost: 1, Waiting: 3, Ahead: 9}
		d := v.OfferLease(quota.LeaseAuto, &p)
		if d.Verdict == balance.Passes {
			v.Take(d.Units, d.SpendByNs)
		} else {
			v.BeginBlock()
		}
		v.FirstEndNs()
		for i := range v.Windows {
			v.Standing(i)
		}
	})
}
