package usage

import (
	"encoding/binary"
	"hash/crc32"
)

// frames reads AWS' event stream. Its numbers have four bytes, the highest first:
//
//	length of all | length of headers | checksum of these | headers | document | checksum of all before
type frames struct {
	at         int // in the frame
	end        int // of its document
	documentAt int // where its document begins
	checksum   uint32
	fixed      [preludeSize]byte // its prelude, later its last checksum
}

const (
	preludeSize  = 12
	checksumSize = 4
	// As in AWS' own readers.
	maxHeaders = 128 << 10
	maxPayload = 16 << 20
)

// write reads the next bytes, and reports whether the frames are sound up to now.
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
			d.write(p[min(n, max(0, f.documentAt-f.at)):n])
		default:
			n = copy(f.fixed[f.at-f.end:checksumSize], p)
		}
		p = p[n:]
		f.at += n
		if f.at >= preludeSize && f.at == f.end+checksumSize {
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
	f.documentAt = preludeSize + int(headers) // fits: maxHeaders
	f.end = int(all) - checksumSize           // fits: with maxPayload
	return true
}

// wrappedEvents reads events that Bedrock's InvokeModelWithResponseStream wraps: the document in a
// frame contains an event as a string in base64.
type wrappedEvents struct {
	json    document // of the events
	isUsed  bool
	bits    uint32 // of the last digits
	pending uint   // how many of the lowest bits do not fill a byte yet
	decoded [48]byte
}

// base64Digits has 1 more than the value of each digit, 0 for other bytes.
var base64Digits = func() (values [256]uint8) {
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		values[c] = uint8(i) + 1
	}
	return values
}()

// start begins the next event.
func (w *wrappedEvents) start() {
	w.isUsed, w.pending = true, 0
	w.json.start()
}

// write reads the next digits.
func (w *wrappedEvents) write(p []byte) {
	n := 0
	for _, c := range p {
		digit := base64Digits[c]
		if digit == 0 && c != '=' {
			w.json.write(w.decoded[:n])
			w.json.fail()
			return
		}
		if digit == 0 {
			continue
		}
		w.bits = w.bits<<6 | uint32(digit-1)
		w.pending += 6
		if w.pending < 8 {
			continue
		}
		w.pending -= 8
		w.decoded[n] = byte(w.bits >> w.pending)
		n++
		if n == len(w.decoded) {
			w.json.write(w.decoded[:n])
			n = 0
		}
	}
	w.json.write(w.decoded[:n])
}
