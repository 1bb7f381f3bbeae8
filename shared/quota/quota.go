// Package quota is what a proxy and the quota service say to each other about a limit that holds over all proxies:
// the messages, and their bytes.
//
// Its invariant: a message that is lost, late or repeated admits no more than the limit. So a Return has the number of
// its Grant, and a Report says how things stand, not what changed. docs/quota.proto describes the same messages for
// others; a test holds both equal. Decode checks only the shape of a message: the service checks whether it can count
// by a definition, and the proxy bounds the times that the service says (MostWaitNs). The package must build for wasm:
// no reflection, no fmt, nothing that does I/O.
//
// A worker of a proxy has one stream to the service. For example, 3 requests wait for a unit each of a limit of 1000 a
// minute, of which 400 are left, and the worker expects 600 more:
//
//	worker                                                service
//	Definition 1: 1000 a minute                      →
//	Ask 1, Part: definition 1, 3 waiting, 600 ahead  →    deducts 102 from the key's counter
//	                                                 ←    AskResult 1, Grant 1: 102 units for 10 s
//	3 requests go on, and nobody comes for the rest
//	Return: grant 1, 99 units                        →    takes 99 back
//
// If the answer of a request decides what it costs, its units are held, and a Part has a Report: sums.go draws
// that. What the service grants is decided elsewhere, in controlplane/internal/quotaservice/balance.
//
// To read it, begin with example_test.go. Each message is beside its append and its decode:
//
//	asks.go        Asks, from a worker: Ask, Part, Report, Return
//	definition.go  Definition: the windows of a counter
//	results.go     Results, from the service: AskResult, Grant, Standing
//	sums.go        Sums: what a worker holds of a key, for its reports
//	times.go       for how long the units of a definition's windows may be leased
//
// A new field of a message is first in docs/quota.proto, then in its struct, numbers, append and decode, and in the
// golden bytes of codec_test.go. TestAsPublished and TestGoldenIsWhole fail until all agree.
package quota

import (
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// The gRPC method of the service.
const (
	Service = "sluice.quota.v1.Quota"
	Method  = "Lease"
)

// The bounds of a message. Decode refuses one that exceeds them, and the service ends its stream.
const (
	MaxMessageBytes = 64 << 10
	MaxDefinitions  = 1024 // of a stream, too: see below
	MaxParts        = 16   // of an ask
	MaxWindows      = 16   // of a definition; and of a key, over all definitions that count in it: else its parts fail
	MaxDomainBytes  = 128
)

// MaxReturnable is how many grants of a stream the service remembers: the newest. What it forgets ends no stream:
//
//	MaxDefinitions  those that were sent or used last stay; an ask of another one is Unknown
//	MaxReturnable   the newest grants stay; units of an earlier one cannot be returned
const MaxReturnable = 4096

// KeyOf returns the key for the two halves of its stable hash. The low half also
// says how the key's jitter shifts windows: see Shifted.
func KeyOf(lo, hi uint64) (key [16]byte) {
	binary.LittleEndian.PutUint64(key[:8], lo)
	binary.LittleEndian.PutUint64(key[8:], hi)
	return key
}

// Shifted returns a window of a rule as it holds for the key.
func Shifted(w limit.Window, key [16]byte) limit.Window {
	return w.Shifted(w.KeyShift(binary.LittleEndian.Uint64(key[:8])))
}

// Why bytes are not a message, beside the errors of package wire.
var (
	errLong   = errors.New("the message is longer than 64 KiB")
	errKey    = errors.New("a key or counter has not 16 bytes")
	errDomain = errors.New("the domain is longer than 128 bytes or not UTF-8")
	errCount  = errors.New("a list is too long")
	errNeeds  = errors.New("a key, a counter, or all windows of a definition or parts of an ask are missing")
)

// noMax is the bound of lists that only the size of the message bounds.
const noMax = MaxMessageBytes

// appendEach appends a list of messages, each as a field with that number.
func appendEach[T any](b []byte, id byte, list []T, appendTo func([]byte, *T) []byte) []byte {
	start := 0
	for i := range list {
		b, start = wire.BeginMessage(b, id)
		b = wire.EndMessage(appendTo(b, &list[i]), start)
	}
	return b
}

// decodeNext decodes the reader's field, a message, as the list's next one. That takes the place of a message that was
// decoded before from other bytes. So each decode begins with *x = X{List: x.List[:0]}: it forgets that message, and
// keeps the memory of its lists.
func decodeNext[T any](r *wire.Reader, list *[]T, most int, decode func(*T, []byte) error) {
	b, n := r.Bytes(), len(*list)
	if n >= most {
		r.Fail(errCount)
	}
	if r.Err() != nil {
		return
	}
	*list = slices.Grow(*list, 1)[:n+1]
	r.Fail(decode(&(*list)[n], b))
}

func readDomain(r *wire.Reader) string {
	b := r.Bytes()
	if len(b) > MaxDomainBytes || !utf8.Valid(b) {
		r.Fail(errDomain)
	}
	return string(b)
}

func readKey(r *wire.Reader) (key [16]byte) {
	b := r.Bytes()
	if len(b) != len(key) {
		r.Fail(errKey)
	}
	copy(key[:], b)
	return key
}
