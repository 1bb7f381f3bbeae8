// Package races explores what can happen between the workers of two proxies and the quota
// service: orders of their messages and of their accesses to shared data that differ from the
// natural order in a few places. Messages are lost and repeated, streams are cut, and time passes
// at any point.
//
// Its invariant: an execution depends only on its choices. One worker runs at a time, and stops
// before each access to shared data; what happens next is a choice from a list. It has only
// tests.
package races
