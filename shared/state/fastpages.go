package state

// fastPages is what a fast path knows of its table's pages: all offsets, worked out
// when the table was found.
type fastPages struct {
	table   *Table
	adopted uint32 // the table's state that the fields below are of
	usable  bool

	key                                      [15]byte // of a page, but for its index
	head                                     uint64   // how a page of this layout begins
	size, floor, prints, records, recordSize int
	pages                                    uint64
}

// prepare works out what lies where.
func (f *fastPages) prepare() {
	t := f.table
	l := &t.layout
	f.adopted, f.usable = t.adopted, t.direct
	if !f.usable {
		return
	}
	f.key = t.pageKey(0)
	f.head = le.Uint64(t.header)
	f.size, f.floor, f.prints, f.records, f.recordSize = l.size, l.floor, l.fingerprints, l.records, l.recordBytes
	f.pages = uint64(t.pages)
}

// get reads the page of e.hash; false: it has another layout, or there is none. The
// general path does not read it again.
func (f *fastPages) get(e *Entry) bool {
	e.key = f.key
	le.PutUint64(e.key[7:], hexDigits(uint32(e.hash>>32*f.pages>>32)))
	b, cas, status := f.table.tables.store.Get(e.key[:])
	if status != OK || len(b) != f.size || le.Uint64(b) != f.head || le.Uint16(b[offSpare:]) != 0 || b[offFloorTime+7] > 127 {
		e.got = got{true, status, cas, b}
		return false
	}
	for i, like := headBytes, f.table.header; i < f.floor; i += 4 {
		if le.Uint32(b[i:]) != le.Uint32(like[i:]) {
			e.got = got{true, status, cas, b}
			return false
		}
	}
	e.page, e.cas = b, cas
	return true
}

// decline lets the general path go on with the page that get has read.
func (f *fastPages) decline(e *Entry) { e.got = got{true, OK, e.cas, e.page} }

// find is page.find. It returns the record too.
func (f *fastPages) find(b page, fingerprint uint32) (slot int, record []byte) {
	for i, at := f.prints, f.records; i < f.records; i += fingerprintBytes {
		if le.Uint32(b[i:]) == fingerprint && le.Uint64(b[at:]) != 0 {
			return (i - f.prints) / fingerprintBytes, b[at : at+f.recordSize]
		}
		at += f.recordSize
	}
	return -1, nil
}
