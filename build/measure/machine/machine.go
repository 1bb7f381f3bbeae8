// Package machine is what a measurement asks of the machine it runs on: the
// processor and its cores, and the time that processes take.
//
// Its invariant: it knows nothing of what is measured. It must not import another
// package of this module.
package machine
