package quota

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

func bytesOf(parts ...string) []byte { return []byte(strings.Join(parts, "")) }

const key16 = "\x12\x10" + "0123456789abcdef"

// goldenAsks has each field of each message that a worker sends.
var goldenAsks = Asks{
	Domain: "shop", Process: 7,
	Definitions: []Definition{{
		ID: 1, Counter: [16]byte([]byte("0123456789abcdef")), Lease: LeaseAuto, CountDenied: true,
		Windows: []limit.Window{
			{
				Algorithm: limit.TokenBucket, Limit: 2, PeriodNs: 300, OffsetNs: -1, Jitter: 100, Elastic: true,
				Burst: 7, Units: 512, Unlimited: true,
			},
			{Algorithm: limit.Concurrency},
		},
	}},
	Asks: []Ask{{ID: 300, Parts: []Part{
		{
			Definition: 1, Key: [16]byte([]byte("0123456789abcdef")), Cost: 3, Waiting: 4, Ahead: 5, Uncharged: 6,
			Inspect: true, Shadow: true, NoBlock: true,
			Report: Report{Held: 9, Charged: 10, Known: 1<<64 - 1, Since: 12, Number: 13, Worker: 14},
		},
		{Key: [16]byte([]byte("0123456789abcdef"))},
	}}},
	Returns: []Return{{Grant: 1, Units: 1<<32 - 1}, {}},
}

var goldenAsksBytes = bytesOf(
	"\x0a\x04shop",                         // domain
	"\x11\x07\x00\x00\x00\x00\x00\x00\x00", // process
	"\x1a\x3f",                             // definitions: 63 bytes
	"\x08\x01",                             // definitions.id
	key16,                                  // definitions.counter
	"\x1a\x1d",                             // definitions.windows: 29 bytes
	"\x08\x05",                             // definitions.windows.algorithm
	"\x10\x02",                             // definitions.windows.limit
	"\x18\xac\x02",                         // definitions.windows.period_ns
	"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // definitions.windows.offset_ns
	"\x28\x64",                 // definitions.windows.jitter
	"\x30\x01",                 // definitions.windows.elastic
	"\x38\x07",                 // definitions.windows.burst
	"\x40\x80\x04",             // definitions.windows.units
	"\x48\x01",                 // definitions.windows.unlimited
	"\x1a\x02\x08\x07",         // definitions.windows: algorithm
	"\x20\xff\xff\xff\xff\x0f", // definitions.lease
	"\x28\x01",                 // definitions.count_denied
	"\x22\x57",                 // asks: 87 bytes
	"\x08\xac\x02",             // asks.id
	"\x12\x3e",                 // asks.parts: 62 bytes
	"\x08\x01",                 // asks.parts.definition
	key16,                      // asks.parts.key
	"\x18\x03",                 // asks.parts.cost
	"\x20\x04",                 // asks.parts.waiting
	"\x28\x05",                 // asks.parts.ahead
	"\x30\x06",                 // asks.parts.spent
	"\x38\x01",                 // asks.parts.inspect
	"\x40\x01",                 // asks.parts.shadow
	"\x48\x09",                 // asks.parts.held
	"\x50\x0a",                 // asks.parts.charged
	"\x58\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // asks.parts.known
	"\x60\x0c",                             // asks.parts.since
	"\x68\x0d",                             // asks.parts.number
	"\x71\x0e\x00\x00\x00\x00\x00\x00\x00", // asks.parts.worker
	"\x78\x01",                             // asks.parts.no_block
	"\x12\x12", key16,                      // asks.parts: key
	"\x2a\x08",                 // returns: 8 bytes
	"\x08\x01",                 // returns.grant
	"\x10\xff\xff\xff\xff\x0f", // returns.units
	"\x2a\x00",                 // returns: empty
)

// goldenResults has each field of each message that the service sends.
var goldenResults = Results{
	Results: []AskResult{
		{ID: 300, Outcome: Denied, Grants: []Grant{{
			Number: 1, Units: 2, Leased: true, ValidNs: 300, Denied: true, Failed: true, WaitNs: limit.Never, HeldBack: true,
			Noted: true, Starting: true, Blocked: true, Windows: []Standing{{Used: 1, ResetNs: 300}, {}},
		}, {}}},
		{ID: 1, Outcome: Busy},
	},
	Proxies: 3,
}

var goldenResultsBytes = bytesOf(
	"\x0a\x32",     // results: 50 bytes
	"\x08\xac\x02", // results.id
	"\x10\x02",     // results.outcome
	"\x1a\x29",     // results.grants: 41 bytes
	"\x08\x01",     // results.grants.number
	"\x10\x02",     // results.grants.units
	"\x18\xac\x02", // results.grants.valid_ns
	"\x20\x01",     // results.grants.denied
	"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // results.grants.wait_ns
	"\x38\x01",                 // results.grants.leased
	"\x40\x01",                 // results.grants.failed
	"\x48\x01",                 // results.grants.held_back
	"\x50\x01",                 // results.grants.noted
	"\x58\x01",                 // results.grants.starting
	"\x60\x01",                 // results.grants.blocked
	"\x32\x05",                 // results.grants.windows: 5 bytes
	"\x08\x01",                 // results.grants.windows.used
	"\x10\xac\x02",             // results.grants.windows.reset_ns
	"\x32\x00",                 // results.grants.windows: empty
	"\x1a\x00",                 // results.grants: empty
	"\x0a\x04\x08\x01\x10\x05", // results: id, outcome
	"\x10\x03",                 // proxies
)

// TestGoldenIsWhole: each field of each message is set in the golden bytes.
func TestGoldenIsWhole(t *testing.T) {
	isSet := map[string]bool{}
	fieldsOf(isSet, reflect.ValueOf(goldenAsks))
	fieldsOf(isSet, reflect.ValueOf(goldenResults))
	require.Contains(t, isSet, "Grant.Blocked")
	for field, is := range isSet {
		require.True(t, is, "%s is 0 everywhere", field)
	}
}

// fieldsOf notes of each field of a message, and of the messages in it, whether it is set somewhere.
func fieldsOf(isSet map[string]bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); !stays[f.Name] {
				name := v.Type().Name() + "." + f.Name
				isSet[name] = isSet[name] || !v.Field(i).IsZero()
				fieldsOf(isSet, v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			fieldsOf(isSet, v.Index(i))
		}
	default: // has no fields
	}
}

// TestGoldenBytes: earlier releases read and write the same bytes.
func TestGoldenBytes(t *testing.T) {
	require.Equal(t, goldenAsksBytes, goldenAsks.Append(nil))
	var asks Asks
	require.NoError(t, asks.Decode(goldenAsksBytes))
	require.Equal(t, goldenAsks, asks)

	require.Equal(t, goldenResultsBytes, goldenResults.Append(nil))
	var results Results
	require.NoError(t, results.Decode(goldenResultsBytes))
	results.Results[0].Grants[1].Windows = nil
	require.Equal(t, goldenResults, results)
}

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
		{"a domain that is a number", bytesOf("\x08\x01"), wire.ErrType},
		{"a process that is a varint", bytesOf("\x10\x01"), wire.ErrType},
		{"an ask that is a number", bytesOf("\x20\x01"), wire.ErrType},
		{"a domain that is too long", bytesOf("\x0a\x81\x01", strings.Repeat("a", 129)), errDomain},
		{"a domain that is not UTF-8", bytesOf("\x0a\x01\xff"), errDomain},
		{"an ask without parts", bytesOf("\x22\x02\x08\x01"), errNeeds},
		{"a part without a key", bytesOf("\x22\x04\x12\x02\x08\x01"), errNeeds},
		{"a key of 15 bytes", bytesOf("\x22\x13\x12\x11\x12\x0f", "0123456789abcde"), errKey},
		{"a cost of 33 bits", bytesOf("\x22\x1a\x12\x18", key16, "\x18\x80\x80\x80\x80\x10"), wire.ErrRange},
		{"seventeen parts", bytesOf("\x22\xd4\x02", strings.Repeat("\x12\x12"+key16, 17)), errCount},
		{"a definition without windows", bytesOf("\x1a\x12", key16), errNeeds},
		{"a definition without a counter", bytesOf("\x1a\x02\x1a\x00"), errNeeds},
		{"seventeen windows", bytesOf("\x1a\x34", key16, strings.Repeat("\x1a\x00", 17)), errCount},
		{"a jitter of 101 percent", bytesOf("\x1a\x16", key16, "\x1a\x02\x28\x65"), wire.ErrRange},
		{"algorithm 256", bytesOf("\x1a\x17", key16, "\x1a\x03\x08\x80\x02"), wire.ErrRange},
		{"a log of 65,536 units", bytesOf("\x1a\x18", key16, "\x1a\x04\x40\x80\x80\x04"), wire.ErrRange},
		{"1,025 definitions", bytesOf(strings.Repeat("\x1a\x14"+key16+"\x1a\x00", 1025)), errCount},
	} {
		require.ErrorIs(t, new(Asks).Decode(c.b), c.want, c.name)
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"result 256", bytesOf("\x0a\x03\x10\x80\x02"), wire.ErrRange},
		{"2³² proxies", bytesOf("\x10\x80\x80\x80\x80\x10"), wire.ErrRange},
		{"seventeen grants", bytesOf("\x0a\x22", strings.Repeat("\x1a\x00", 17)), errCount},
		{"seventeen standings", bytesOf("\x0a\x24\x1a\x22", strings.Repeat("\x32\x00", 17)), errCount},
		{"a standing that is a number", bytesOf("\x0a\x04\x1a\x02\x30\x01"), wire.ErrType},
		{"a grant that is cut", bytesOf("\x0a\x04\x1a\x03\x08\x01"), wire.ErrCut},
	} {
		require.ErrorIs(t, new(Results).Decode(c.b), c.want, c.name)
	}
	require.ErrorIs(t, new(Asks).Decode(make([]byte, MaxMessageBytes+1)), errLong)
	require.ErrorIs(t, new(Results).Decode(make([]byte, MaxMessageBytes+1)), errLong)
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
	parts := []Part{{Cost: 1, Waiting: 3}, {Cost: 1}}
	asks := Asks{Asks: []Ask{{ID: 1, Parts: parts}}, Returns: []Return{{Grant: 1, Units: 2}}}
	result := AskResult{ID: 1, Outcome: Granted, Grants: []Grant{{Units: 3, Windows: make([]Standing, 2)}}}
	results := Results{Proxies: 3, Results: []AskResult{result}}
	var b []byte
	for _, m := range []message{&asks, &results} {
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

func FuzzResults(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		m := random[Results](r)
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzz(t, b, &Results{}, &Results{}) })
}
