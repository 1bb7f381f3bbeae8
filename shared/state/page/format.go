//go:build !sluice_variant

package page

// The version of the layout of directory, heartbeats and pages, and what it adds to
// their keys. Each version has keys of its own: two releases that differ in it run in
// one proxy, each with counters of its own, and neither meets a value that it cannot
// read. The first version's keys are plain.
//
// A new algorithm needs no new version, and neither does a new flag of a window: a build that does not know a window
// leaves its table alone, see directory.Read. Any other change of these bytes needs one.
//
// To raise it, raise that of nextformat.go too, write the golden bytes anew, freeze the last
// filter in filter/testdata, and say in the changelog that counters begin anew.
const (
	FormatVersion = 1
	KeySuffix     = ""
	KeyPrefix     = "sl/"
	spareBytes    = 0 // of each record
)
