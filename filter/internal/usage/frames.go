package usage

import (
	"encoding/binary"
	"hash/crc32"
)

// frames reads AWS' event stream, in which numbers have four bytes, the highest first:
//
//	length of all | length of headers | checksum of these | headers | document | checksum of all before
type frames struct {
	at         int // in the present frame
	end        int // of its document
	afterNames int // where its document begins
	checksum   uint32
	fixed      [preludeSize]byte // its prelude, later its last checksum
}

const (
	preludeSize  = 12
	checksumSize = 4
	// What AWS' own readers take.
	maxHeaders = 128 << 10
	maxPayload = 16 << 20
)

// write reports whether the frames are sound up to now.
func (f *frames) write(p []byte, d *document) bool {
	for len(p) > 0 {
		n := 0
		switch {
		case f.at < preludeSize:
			n = copy(f.fixed[f.at:], p)
			if f.at+n == preludeSize {
				if !f.begin() {
					return false
				}
				d.start()
			}
		case f.at < f.end:
			n = min(len(p), f.end-f.at)
			f.checksum = crc32.Update(f.checksum, crc32.IEEETable, p[:n])
			d.write(p[min(n, max(0, f.afterNames-f.at)):n])
		default:
			n = copy(f.fixed[f.at-f.end:checksumSize], p)
		}
		p = p[n:]
		if f.at += n; f.at >= preludeSize && f.at == f.end+checksumSize {
			d.finish()
			if binary.BigEndian.Uint32(f.fixed[:]) != f.checksum {
				return false
			}
			f.at = 0
		}
	}
	return true
}

// begin reads the prelude, and reports whether it is sound.
func (f *frames) begin() bool {
	all, headers := binary.BigEndian.Uint32(f.fixed[:]), binary.BigEndian.Uint32(f.fixed[4:])
	f.checksum = crc32.ChecksumIEEE(f.fixed[:8])
	if binary.BigEndian.Uint32(f.fixed[8:]) != f.checksum || headers > maxHeaders ||
		all < preludeSize+headers+checksumSize || all > preludeSize+headers+maxPayload+checksumSize {
		return false
	}
	f.checksum = crc32.Update(f.checksum, crc32.IEEETable, f.fixed[8:])
	f.afterNames = preludeSize + int(headers) // fits: maxHeaders
	f.end = int(all) - checksumSize           // fits: with maxPayload
	return true
}
