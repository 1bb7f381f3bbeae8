// Package manage asks running proxies about their counters, on the management path of the
// filter, and reads their answers.
//
// Its invariant: the management token goes to no address that its Reach excludes, and into no error.
// An answer is bounded in size and time, is read into the types of package result, and takes
// memory only within the bounds of a Fleet. The package must never import the store, the xDS
// server, the API or the command line.
//
// Read it from the operations (operation.go) by the way of a call: which proxies are asked
// where (target.go), what a Fleet bounds (fleet.go), one question to one proxy (client.go) and
// where its token may go (allow.go), and the answer (answer.go, denials.go, text.go).
package manage
