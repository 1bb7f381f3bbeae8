package quota

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/wire"
)

func bytesOf(parts ...string) []byte { return []byte(strings.Join(parts, "")) }

const key16 = "\x12\x10" + "0123456789abcdef"

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"a tag alone", bytesOf("\x20"), wire.ErrCut},
		{"a length beyond the end", bytesOf("\x0a\x05abc"), wire.ErrCut},
		{"a length of 2⁶³", bytesOf("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc"), wire.ErrCut},
		{"a number of eleven bytes", bytesOf("\x28", strings.Repeat("\xff", 10), "\x01"), wire.ErrCut},
		{"a number of 65 bits", bytesOf("\x28", strings.Repeat("\xff", 9), "\x02"), wire.ErrCut},
		{"a fixed number that is cut", bytesOf("\x11\x01\x02"), wire.ErrCut},
		{"field 0", bytesOf("\x00\x00"), wire.ErrTag},
		{"a field number beyond 2²⁹", bytesOf("\x80\x80\x80\x80\x10\x00"), wire.ErrTag},
		{"a group", bytesOf("\x33\x34"), wire.ErrTag},
		{"a domain that is a number", bytesOf("\x08\x01"), errType},
		{"a process that is a varint", bytesOf("\x10\x01"), errType},
		{"an ask that is a number", bytesOf("\x20\x01"), errType},
		{"a domain that is too long", bytesOf("\x0a\x81\x01", strings.Repeat("a", 129)), errSize},
		{"a domain that is not UTF-8", bytesOf("\x0a\x01\xff"), errSize},
		{"an ask without parts", bytesOf("\x22\x02\x08\x01"), errNeeds},
		{"a part without a key", bytesOf("\x22\x04\x12\x02\x08\x01"), errNeeds},
		{"a key of 15 bytes", bytesOf("\x22\x13\x12\x11\x12\x0f", "0123456789abcde"), errSize},
		{"a cost of 33 bits", bytesOf("\x22\x1a\x12\x18", key16, "\x18\x80\x80\x80\x80\x10"), errRange},
		{"seventeen parts", bytesOf("\x22\xd4\x02", strings.Repeat("\x12\x12"+key16, 17)), errBounds},
		{"a definition without windows", bytesOf("\x1a\x12", key16), errNeeds},
		{"a definition without a counter", bytesOf("\x1a\x02\x1a\x00"), errNeeds},
		{"seventeen windows", bytesOf("\x1a\x34", key16, strings.Repeat("\x1a\x00", 17)), errBounds},
		{"a jitter of 101 percent", bytesOf("\x1a\x16", key16, "\x1a\x02\x28\x65"), errRange},
	} {
		require.ErrorIs(t, new(Asks).Decode(c.b), c.want, c.name)
	}
	require.ErrorIs(t, new(Asks).Decode(make([]byte, MaxMessageBytes+1)), errLong)
	require.ErrorIs(t, new(Grants).Decode(make([]byte, MaxMessageBytes+1)), errLong)
}

// TestDecodeSkips: a field of a later release changes nothing, wherever it is.
func TestDecodeSkips(t *testing.T) {
	unknown := "\xa0\x06\x07" + "\xa1\x06ABCDEFGH" + "\xa2\x06\x03abc" + "\xa5\x06ABCD"
	var m Asks
	require.NoError(t, m.Decode(bytesOf(unknown, "\x22\x48\x12\x46", unknown, key16, "\x18\x02", unknown)))
	require.Equal(t, []Ask{{Parts: []Part{{Key: [16]byte([]byte("0123456789abcdef")), Cost: 2}}}}, m.Asks)
}

// TestCodecAllocates: in a worker's steady state, neither way allocates.
func TestCodecAllocates(t *testing.T) {
	asks := Asks{Asks: []Ask{{ID: 1, Parts: []Part{{Cost: 1, Waiting: 3}, {Cost: 1}}}}, Returns: []Return{{Grant: 1, Units: 2}}}
	answers := Grants{Proxies: 3, Results: []AskResult{{ID: 1, Result: Granted, Grants: []Grant{{Units: 3, Windows: make([]Standing, 2)}}}}}
	var b []byte
	for _, m := range []message{&asks, &answers} {
		b = m.Append(b[:0])
		require.NoError(t, m.Decode(b))
		require.Zero(t, testing.AllocsPerRun(100, func() {
			b = m.Append(b[:0])
			if err := m.Decode(b); err != nil {
				panic(err)
			}
		}))
	}
}

// fuzz holds any bytes against what Append makes of their message.
func fuzz(t *testing.T, b []byte, m, back message) {
	if m.Decode(b) != nil {
		return
	}
	text := m.Append(nil)
	require.NoError(t, back.Decode(text))
	require.Equal(t, text, back.Append(nil))
}

func FuzzAsks(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		m := random[Asks](r)
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzz(t, b, &Asks{}, &Asks{}) })
}

func FuzzGrants(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		m := random[Grants](r)
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzz(t, b, &Grants{}, &Grants{}) })
}
