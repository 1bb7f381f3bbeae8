// Package machine is what a measurement asks of the machine it runs on: the
// processor and its cores, the time and memory that processes take, children that
// end with their parent.
//
// Its invariant: it knows nothing of what is measured. It must not import another
// package of this module.
package machine
