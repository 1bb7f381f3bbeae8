// Package store keeps the revisions of policies that were accepted, until they are
// dropped, and how each proxy replied to them.
//
// Its invariant: an acknowledged change survives a crash, or opening the store
// fails and says what is lost; and a revision that changed since it was stored is
// never returned. Numbers are 1, 2, 3, … in order of appending, over all policies: a
// number alone names a revision, also to a proxy that comes from another policy. None
// is given twice: those that Restore loses are left out.
//
// The package gives policies no meaning: it must never import shared/policy, the
// xDS server or the API.
//
// This file has the interface and its types. revisions.go and audit.go implement it over
// records, whose layout is in records.go, and a backend keeps the records: bolt.go in a file
// (boltopen.go opens and checks it, last.go notes how far it has come, backup.go copies it),
// etcd.go on etcd (etcdtx.go has its transactions, etcdcommit.go makes them durable,
// etcdpeers.go knows the other control planes).
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
)

var (
	// ErrNotFound says that there is no such revision.
	ErrNotFound = errors.New("no such revision")
	// ErrHeld says that another process has the store open.
	ErrHeld = errors.New("data directory is held by another process")
	// ErrConflict says that a change is based on what does not hold any more: the last revision, a
	// canary that lasts, that no proxy has refused it, or that this control plane leads.
	ErrConflict = errors.New("another change came first")
	// ErrCutOff says that what keeps the store is out of reach.
	ErrCutOff = errors.New("cut off from etcd")
	// ErrDamaged says that stored data differs from what was written, or is missing.
	ErrDamaged = errors.New("the database is damaged")
)

// Store is a versioned store of policies, of one control plane or of several. Revisions
// never change, each change is one transaction that compares the last number which its
// author knew, and callers watch changes instead of assuming that all are their own.
type Store interface {
	Policies
	Replies
	Audit
	Peers
	// Healthy returns why no change can be stored, as far as that is known: what
	// is stored is not in place or ErrCutOff, or the last change could not be written
	// and a trial cannot either.
	Healthy(ctx context.Context) error
	// Backup returns a copy of everything as of now, for Restore, and its length.
	Backup(ctx context.Context) (io.ReadCloser, int64, error)
	Close() error
}

// Policies are the revisions of all policies.
type Policies interface {
	// Append makes all drafts of a change revisions and takes its steps, or does nothing.
	// When it returns, they are durable. The error is ErrConflict where Last returns
	// another number than the change's author knew, or a rollout of a step has ended. An error
	// of the disk or of etcd may say that the change is stored all the same, or that this is
	// not known; those who wait for Appended learn of it then.
	Append(ctx context.Context, c Change) ([]Revision, error)
	// Last returns the highest number that was ever given, 0 before the first.
	Last(ctx context.Context) (uint64, error)
	// Get returns a revision, ErrNotFound, or ErrDamaged.
	Get(ctx context.Context, number uint64) (Revision, error)
	// History returns the newest revisions of a policy first, at most limit of them; 0
	// returns all. The policy "" stands for all. A damaged summary may be of any policy.
	History(ctx context.Context, policy string, limit int) ([]Summary, error)
	// Drop forgets revisions and their marks, and passes over unknown ones. It
	// refuses to drop the newest one of a policy.
	Drop(ctx context.Context, numbers []uint64) error
	// Appended returns a channel that is closed at the next Append, and where others
	// share the store also when they mark a revision.
	Appended() <-chan struct{}
}

// Replies are what proxies made of revisions.
type Replies interface {
	// SaveReply sets a mark on the revision and applies Proxy.After to the proxy.
	SaveReply(ctx context.Context, r Reply) error
	// Proxies returns every proxy with a reply.
	Proxies(ctx context.Context) ([]Proxy, error)
	// Forget drops a proxy. Revisions keep their marks.
	Forget(ctx context.Context, id Identity) error
}

// Audit is the audit log.
type Audit interface {
	// Record appends to the audit log and returns the entry's id.
	Record(ctx context.Context, e Entry) (uint64, error)
	// SetOutcome sets the outcome of an entry, unless that has been dropped since.
	SetOutcome(ctx context.Context, id uint64, outcome string) error
	// Audit returns the newest entries about a policy first, at most limit of them and
	// only those with an id below before; 0 means no bound. The policy "" stands for
	// all, and for what is about none.
	Audit(ctx context.Context, policy string, limit int, before uint64) ([]Entry, error)
	// Secret returns the secret under which the audit log, and proxies' reports, hash
	// keys. The first call makes it.
	Secret(ctx context.Context) ([]byte, error)
}

// Peers are the other control planes on the store, if there can be any.
type Peers interface {
	// Leads says whether, of all control planes on the store, this one steps rollouts.
	Leads() bool
	// Tell tells the other control planes of this one's proxies, until it is gone. There are
	// never fewer parts than before. It returns how many bytes that wrote.
	Tell(ctx context.Context, parts [][]byte) (written int, err error)
	// Told returns each part that the other control planes told last, and a channel that is
	// closed when one tells more, or is gone; nil where there can be no other.
	Told() (proxies map[string][]byte, changed <-chan struct{})
}

// store is what Bolt and Etcd do alike over their backends: each change of records is one transaction.
type store struct{ backend backend }

// backend keeps records.
type backend interface {
	viewer
	// commit runs a change, and runs it again if another one came between or shares its transaction.
	// When it returns nil, all that the change wrote is durable. When it returns an error, nothing of it
	// is, unless the error says that it is stored, or that this is not known. With byLeader, the change is
	// only made while this control plane leads.
	commit(ctx context.Context, byLeader bool, change func(records) error) error
	appended() // wakes those that wait for Store.Appended, after a change that commit returned nil for
}

type viewer interface {
	view(do func(records) error) error
}

func (s store) read(what string, do func(records) error) error {
	return naming(what, s.backend.view(do))
}

func (s store) write(ctx context.Context, what string, change func(records) error) error {
	return naming(what, s.backend.commit(ctx, false, change))
}

func naming(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// DefaultPolicy is the policy of what was stored before policies had names.
const DefaultPolicy = "default"

// Change is what becomes of some policies at once.
type Change struct {
	Last   uint64 // what the store's Last was when the change was judged
	Above  uint64 // numbers are above this one, too
	Drafts []Draft
	Steps  []Step

	// ByLeader says that serve takes the steps by itself. It does so only while Store.Leads, and promotes
	// nothing that a proxy has refused by then. Steps that people take have neither condition.
	ByLeader bool
}

// Draft is a policy about to become a revision.
type Draft struct {
	Policy  string             // its name, "" for the default
	Proxies *selector.Selector // proxies that the policy is for, nil: those that no other takes

	File       string   // name of the file it came from, for people
	Wasm       string   // path of the filter's binary on the proxies' machines, may be empty
	RollbackOf uint64   // the revision whose content this is, 0 if it is new
	YAML       []byte   // the text as given
	JSON       []byte   // what proxies get, without the revision stamp
	Rollout    *Rollout // nil: all proxies of the policy get it at once
	Audit      Entry    // stored in the same transaction
}

// Rollout says which proxies of its policy get a revision while it lasts, and what became
// of it. Only the newest revision of a policy has one that lasts.
type Rollout struct {
	Percent      float64       `json:"percent"`                    // of the proxies, by a hash of the node id
	Except       []string      `json:"except,omitempty"`           // sorted node ids that the hash puts on a wrong side
	PromoteAfter time.Duration `json:"promote_after_ns,omitempty"` // 0: not by itself
	MaxDenied    float64       `json:"max_denied"`                 // percentage points above what the others deny
	AbortDenied  bool          `json:"abort_on_denied,omitempty"`  // above that it is aborted, else it stalls
	Who          string        `json:"who"`                        // began it
	State        RolloutState  `json:"state"`
	Why          string        `json:"why,omitempty"` // it has stalled, or ended by itself
}

// RolloutState is how a rollout stands.
type RolloutState string

// How it may stand.
const (
	Canary   RolloutState = "canary"
	Stalled  RolloutState = "stalled" // a canary that is not promoted by itself any more
	Promoted RolloutState = "promoted"
	Aborted  RolloutState = "aborted" // the revision counts as absent
)

// Lasts says whether some proxies are still to get the revision, or to lose it.
func (r *Rollout) Lasts() bool { return r != nil && (r.State == Canary || r.State == Stalled) }

// IsAborted says whether the revision counts as absent.
func (r *Rollout) IsAborted() bool { return r != nil && r.State == Aborted }

// Step is what becomes of a revision's rollout while that lasts.
type Step struct {
	Revision uint64
	State    RolloutState
	Why      string
	Audit    Entry // stored in the same transaction
}

// Entry is one line of the audit log. The store sets ID and At, and Revision
// where the entry is about one that it appends.
type Entry struct {
	ID       uint64    `json:"id"`
	At       time.Time `json:"at"`
	Who      string    `json:"who"`              // token or certificate, "" where anyone may call
	From     string    `json:"from,omitempty"`   // address of the caller
	Action   string    `json:"action"`           // apply, rollback, counters set, …
	Policy   string    `json:"policy,omitempty"` // "": about none
	Revision uint64    `json:"revision,omitempty"`
	Text     string    `json:"text,omitempty"`    // what changes, in short
	Outcome  string    `json:"outcome,omitempty"` // once it is known
}

// maxEntries bounds the audit log: the oldest entries go first.
const maxEntries = 10_000

// Summary is a revision without its texts.
type Summary struct {
	Number     uint64             `json:"revision"`
	Policy     string             `json:"name,omitempty"` // its name
	Proxies    *selector.Selector `json:"proxies,omitempty"`
	File       string             `json:"file"`
	Wasm       string             `json:"wasm,omitempty"`
	RollbackOf uint64             `json:"rollback_of,omitempty"`
	Created    time.Time          `json:"created"`
	SHA256     string             `json:"sha256"` // of YAML, hexadecimal
	Bytes      int                `json:"bytes"`  // length of YAML
	Rollout    *Rollout           `json:"rollout,omitempty"`

	Acked  bool `json:"acked"`  // some proxy has accepted it
	Nacked bool `json:"nacked"` // some proxy has refused it

	// Damaged says that the summary itself is damaged. Only Number is set then.
	// Get finds out about the texts.
	Damaged bool `json:"damaged,omitempty"`
}

// Counts says whether the revision counts. One that is damaged or aborted is as if it were absent.
func (s *Summary) Counts() bool { return !s.Damaged && !s.Rollout.IsAborted() }

// Revision is one version of the policy.
type Revision struct {
	Summary
	YAML []byte
	JSON []byte
}

// Identity tells a proxy from all others: proxies with the same node id differ in
// their certificates.
type Identity struct {
	SAN  string // name in its certificate, empty if serve requests none
	Node string // node id
}

// Compare orders identities by node id.
func (i Identity) Compare(j Identity) int {
	return cmp.Or(cmp.Compare(i.Node, j.Node), cmp.Compare(i.SAN, j.SAN))
}

// key is the identity in a database. A node id has no NUL byte.
func (i Identity) key() []byte {
	if i.SAN == "" {
		return []byte(i.Node)
	}
	return []byte(i.SAN + "\x00" + i.Node)
}

// Reply is a proxy's ACK or NACK of a revision.
type Reply struct {
	SAN      string // with Node, the proxy's Identity
	Node     string
	Revision uint64
	Accepted bool
	Text     string // the proxy's words, if it refused
	At       time.Time
}

// ID is the identity of the proxy.
func (r Reply) ID() Identity { return Identity{r.SAN, r.Node} }

// Proxy is what is known of a proxy from its replies.
type Proxy struct {
	SAN      string    `json:"san,omitempty"` // with Node, its Identity
	Node     string    `json:"node"`
	Acked    uint64    `json:"acked,omitempty"` // the revision it accepted last: what it runs
	AckedAt  time.Time `json:"acked_at,omitzero"`
	Nacked   uint64    `json:"nacked,omitempty"` // the revision it refused last
	NackedAt time.Time `json:"nacked_at,omitzero"`
	NackText string    `json:"nack_text,omitempty"`

	// Refused lists the revisions it refused and has not accepted since,
	// apart from those older than one it accepted.
	Refused []uint64 `json:"refused,omitempty"`
	// Unsettled says that its latest reply was a refusal: it has not yet accepted
	// the revision that it got again.
	Unsettled bool `json:"unsettled,omitempty"`
}

// ID is the proxy's identity.
func (p Proxy) ID() Identity { return Identity{p.SAN, p.Node} }

// maxRefused bounds Proxy.Refused for a proxy that refuses everything.
const maxRefused = 32

// After returns what is known of the proxy after the reply.
func (p Proxy) After(r Reply) Proxy {
	p.SAN, p.Node = r.SAN, r.Node
	if r.Accepted {
		p.Acked, p.AckedAt = r.Revision, r.At
		p.Refused = slices.DeleteFunc(slices.Clone(p.Refused), func(n uint64) bool { return n <= r.Revision })
		p.Unsettled = false
		return p
	}
	p.Nacked, p.NackedAt = r.Revision, r.At
	p.NackText = r.Text
	p.Unsettled = true
	if !slices.Contains(p.Refused, r.Revision) {
		p.Refused = append(slices.Clone(p.Refused), r.Revision)
		p.Refused = p.Refused[max(0, len(p.Refused)-maxRefused):]
	}
	return p
}
