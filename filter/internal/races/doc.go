// Package races explores what can happen between the workers of two proxies and the
// quota service: every order of their messages and accesses to shared data that
// departs a few times from the natural one, with messages lost and repeated, streams
// cut, and time that passes at any point.
//
// Its invariant: an execution is a function of its choices alone. One worker runs at
// a time and stops before each access to shared data; whatever happens next is a
// choice from a list. It has tests only.
package races
