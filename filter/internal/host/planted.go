//go:build sluice_faults

package host

// planted reports whether the request names the fault in its header x-fault. With a key,
// it must be one of counters. It makes a filter that fails on demand, for tests:
//
//	panic          deciding the request panics
//	panic-counted  the same once it is decided and counted
//	reads-fail     the proxy answers reads of counters with an error
//	writes-lose    another worker is always faster
func planted(fault string, key []byte) bool {
	if key != nil && (len(key) < 3 || string(key[:3]) != "sl/") {
		return false
	}
	name, _ := theProxy.Header("x-fault")
	return name == fault
}

// reportsWhole reports whether the node's metadata asks for whole verdicts, with keys. Only a
// simulated host can ask the filter of a release for them.
func reportsWhole() bool {
	_, asked := theProxy.Attribute("xds\x00node\x00metadata\x00sluice\x00report")
	return asked
}
