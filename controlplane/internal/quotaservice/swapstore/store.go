// Package swapstore is where the quota service keeps its values: a Store changes them by compare-and-swap, and by
// its own clock. Memory is one in this process; package redisstore has those in Redis.
//
// Its invariant: a value changes only by a swap whose conditions hold at the store, and a swap is carried out at most
// once. It must not know what a value means.
//
// The store compares a swap in this order, in one go with carrying it out:
//
//	AgeNs            has the store had its state for so long?  else Young
//	New              is it there? nil = only read              else Read
//	Old              is it the nonce of the value there?       else Read
//	FromNs, UntilNs  is its clock between them?                else Late
//	New              is the value from now on                  Swapped
//
// Young, Read and Late come with the value that is there.
//
// A swap that Adds is for a value that is a sum, in decimal digits. AgeNs, Old and New are not for it, and its result
// has no Value:
//
//	FromNs, UntilNs  is the clock between them?                else Late
//	Units            are in the sum from now on                Swapped, with the Sum
package swapstore

import (
	"context"
	"errors"
	"time"
)

// Store keeps values of at most a few KiB under keys of 16 bytes, and changes
// them by compare-and-swap, or adds to them. Its clock is the one that decides: see Swap.
type Store interface {
	// Swap carries out many swaps in one go, in no order, and calls done for each
	// exactly once, from any goroutine, before the context's deadline or soon
	// after. It may return before that, and keeps nothing of swaps once it has
	// returned. It never repeats a swap of which it does not know whether it was
	// carried out.
	Swap(ctx context.Context, swaps []Swap, done func(i int, r Result))
	// Age says how long the store has had its state: of several servers, the one that has had
	// it for the shortest time. What has none begins with its first Age, or Swap with an AgeNs.
	// anew says that some server has another state than at the last call.
	Age(ctx context.Context) (ns int64, anew bool, err error)
	// Live notes that the process of a domain is alive, and returns how many of
	// the domain have been noted within the last LiveFor.
	Live(ctx context.Context, domain string, process uint64) (int, error)
	// Secret returns what the store keeps under the name, after storing what
	// fresh returns if it keeps nothing.
	Secret(ctx context.Context, name string, fresh func() []byte) ([]byte, error)
	Close() error
}

// LiveFor is how long a process counts as alive after it was noted.
const LiveFor = 10 * time.Second

// Swap replaces a value if it is what the caller expects, and if the caller's decision holds at the time of the
// store's clock. The package comment says how.
type Swap struct {
	Key      [16]byte
	Domain   string // whose key it is: a store may bound what each domain keeps
	Old      []byte // nonce of the value that is expected; nil = none is there
	New      []byte // the value; its first NonceBytes are its nonce. nil = only read
	FromNs   int64  // the store's clock must have reached this instant
	UntilNs  int64  // and must be before this one
	ExpireNs int64  // when the value may be forgotten, by the store's clock
	AgeNs    int64  // for how long the store must have had its state, or the swap is Young; 0 = it need not
	Adds     bool   // add the Units to the value: see the package comment
	Units    uint64 // 0 = only read the sum
}

// NonceBytes is the size of the random number that a value begins with. Each
// write has another, so equal nonces mean equal values.
const NonceBytes = 8

// Status is what became of a Swap.
type Status uint8

// What became of a Swap.
const (
	Swapped Status = iota
	Read           // another value is there, or none, or it was only read
	Late           // the store's clock is before FromNs, or not before UntilNs
	Young          // the store has not had its state for AgeNs
	Failed         // the store did not answer, or refused: whether it swapped is not known
)

// Result is what the store has answered to a Swap.
type Result struct {
	Status Status
	Value  []byte // what is in the store, unless Swapped, Failed or of one that Adds; nil = nothing
	Sum    uint64 // of a swap that Adds and was Swapped: the value with its units
	NowNs  int64  // the store's clock, unless Failed
	AgeNs  int64  // of Young
	Err    error  // of Failed
}

// ErrFull is the error of a Failed swap that was not carried out because the domain has
// no room for more.
var ErrFull = errors.New("the domain has no room for more in the memory store: its keys count more than their share")
