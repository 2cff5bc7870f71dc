package series

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A segment holds the blocks of all series of a shard over one span of a level:
//
//	segmentVersion, 3 bytes of 0, number of blocks (4)
//	for each: id (4), end of its bytes (4), CRC-32C of id and bytes (4)
//	the blocks
//
// Ids ascend; numbers are big-endian. A series is found by binary search, which reads
// two or three pages of the file.
const (
	segmentVersion = 1
	segmentHead    = 8
	segmentEntry   = 12
)

var (
	errSegment = errors.New("damaged segment")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

type segment struct {
	n      int
	index  []byte
	blocks []byte
}

// openSegment reads the head of a segment. Empty data are an empty segment.
func openSegment(data []byte) (segment, error) {
	if len(data) == 0 {
		return segment{}, nil
	}
	if len(data) < segmentHead || data[0] != segmentVersion {
		return segment{}, errSegment
	}
	n := int(binary.BigEndian.Uint32(data[4:]))
	if n > (len(data)-segmentHead)/segmentEntry {
		return segment{}, errSegment
	}
	blocks := segmentHead + n*segmentEntry
	return segment{n: n, index: data[segmentHead:blocks], blocks: data[blocks:]}, nil
}

func (s segment) id(i int) uint32 { return binary.BigEndian.Uint32(s.index[i*segmentEntry:]) }

// block returns the bytes of the i-th block, or errSegment.
func (s segment) block(i int) ([]byte, error) {
	entry := s.index[i*segmentEntry:]
	end, sum := binary.BigEndian.Uint32(entry[4:]), binary.BigEndian.Uint32(entry[8:])
	start := uint32(0)
	if i > 0 {
		start = binary.BigEndian.Uint32(s.index[(i-1)*segmentEntry+4:])
	}
	if start > end || int(end) > len(s.blocks) {
		return nil, errSegment
	}
	data := s.blocks[start:end]
	if blockSum(entry[:4], data) != sum {
		return nil, errSegment
	}
	return data, nil
}

// find returns the block of a series; nil if the segment has none.
func (s segment) find(id uint32) ([]byte, error) {
	low, high := 0, s.n
	for low < high {
		if mid := (low + high) / 2; s.id(mid) < id {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == s.n || s.id(low) != id {
		return nil, nil
	}
	return s.block(low)
}

func blockSum(id, data []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, id), castagnoli, data)
}

// segmentWriter builds a segment from blocks in ascending order of ids.
type segmentWriter struct {
	index, blocks []byte
}

func (w *segmentWriter) add(id uint32, c *codec, b block) {
	from := len(w.blocks)
	w.blocks = c.encode(w.blocks, b)
	at := len(w.index)
	w.index = binary.BigEndian.AppendUint32(w.index, id)
	w.index = binary.BigEndian.AppendUint32(w.index, uint32(len(w.blocks)))
	w.index = binary.BigEndian.AppendUint32(w.index, blockSum(w.index[at:at+4], w.blocks[from:]))
}

// bytes returns the encoded segment.
func (w *segmentWriter) bytes() []byte {
	out := make([]byte, 0, segmentHead+len(w.index)+len(w.blocks))
	out = append(out, segmentVersion, 0, 0, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(len(w.index)/segmentEntry))
	return append(append(out, w.index...), w.blocks...)
}
