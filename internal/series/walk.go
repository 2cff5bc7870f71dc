package series

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"syscall"
	"time"
)

// bbolt trusts the page numbers that it reads. If page numbers form a circle, bbolt never
// ends. If the list of free pages names used pages, the next write makes such a circle. If
// the number of free pages is wrong, bbolt may allocate memory until the process ends.
// guard can stop none of these, so checkPages checks a file before bbolt opens it. It
// reads bbolt's format of version 2, in the byte order of the machine.
const (
	pageHeader    = 16 // id 8, flags 2, count 2, overflow 4
	pageElement   = 16 // of a branch: position 4, key 4, child 8; of a leaf: flags, position, key, value, 4 each
	metaSize      = 64 // magic, version, page size, flags 4 each; root, sequence, free list, pages, transaction, checksum 8 each
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	flagBranch    = 0x01
	flagLeaf      = 0x02
	flagFreelist  = 0x10
	elementBucket = 0x01
	noFreelist    = math.MaxUint64
	leastPage     = 512
	mostPage      = 1 << 20
)

var native = binary.NativeEndian

// boltMeta is one of the two meta pages of a file.
type boltMeta struct{ pageSize, root, free, pages, transaction uint64 }

// walk is the state of a walk over the pages of a file.
type walk struct {
	file io.ReaderAt
	boltMeta
	seen    []bool // by page
	pending []boltBranch
}

// boltBranch is a page to visit. top: the page is in the tree of buckets, and not in the
// tree of one bucket.
type boltBranch struct {
	page uint64
	top  bool
}

// checkPages returns errDamaged unless the pages of the file form finite trees and the
// free pages are unused. It holds bbolt's lock while it reads. An empty or missing file is
// valid. A file that another process has locked is valid, too, because bbolt then refuses
// to open it.
func checkPages(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for began := time.Now(); syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil; {
		if time.Since(began) > lockWait {
			return nil
		}
		time.Sleep(lockWait / 40)
	}
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || !info.Mode().IsRegular() {
		return err
	}
	w := &walk{file: f}
	if err := w.run(uint64(info.Size())); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

func (w *walk) run(size uint64) error {
	if err := w.readMeta(); err != nil {
		return err
	}
	if w.pages < 3 || w.pages > size/w.pageSize {
		return fmt.Errorf("%d pages in %d bytes", w.pages, size)
	}
	w.seen = make([]bool, w.pages)
	w.seen[0], w.seen[1] = true, true
	w.pending = []boltBranch{{w.root, true}}
	for len(w.pending) > 0 {
		at := w.pending[len(w.pending)-1]
		w.pending = w.pending[:len(w.pending)-1]
		if err := w.visit(at); err != nil {
			return fmt.Errorf("page %d: %w", at.page, err)
		}
	}
	if w.free == noFreelist {
		return nil
	}
	if err := w.checkFree(); err != nil {
		return fmt.Errorf("free list, page %d: %w", w.free, err)
	}
	return nil
}

// readMeta reads the valid meta page of the later transaction, as bbolt does.
func (w *walk) readMeta() error {
	first, ok := w.metaAt(0)
	if ok {
		w.boltMeta = first
	}
	for size := int64(leastPage); size <= mostPage; size *= 2 {
		if ok && size != int64(first.pageSize) {
			continue
		}
		if second, valid := w.metaAt(size); valid && second.pageSize == uint64(size) && (!ok || second.transaction > first.transaction) {
			w.boltMeta = second
			return nil
		}
	}
	if !ok {
		return errors.New("no valid meta page")
	}
	return nil
}

func (w *walk) metaAt(at int64) (boltMeta, bool) {
	b := make([]byte, metaSize)
	if _, err := w.file.ReadAt(b, at+pageHeader); err != nil {
		return boltMeta{}, false
	}
	sum := fnv.New64a()
	sum.Write(b[:56])
	m := boltMeta{
		pageSize: uint64(native.Uint32(b[8:])), root: native.Uint64(b[16:]), free: native.Uint64(b[32:]),
		pages: native.Uint64(b[40:]), transaction: native.Uint64(b[48:]),
	}
	valid := native.Uint32(b) == boltMagic && native.Uint32(b[4:]) == boltVersion && native.Uint64(b[56:]) == sum.Sum64() &&
		m.pageSize >= leastPage && m.pageSize <= mostPage
	return m, valid
}

// claim marks a page and its overflow pages as seen. It fails if one of them already
// belongs to another part of the file. It reads the whole page if whole returns true for
// its flags.
func (w *walk) claim(page uint64, whole func(flags uint16) bool) (flags, count uint16, body []byte, err error) {
	if page >= w.pages {
		return 0, 0, nil, fmt.Errorf("the file has %d pages", w.pages)
	}
	head := make([]byte, pageHeader)
	if _, err := w.file.ReadAt(head, int64(page*w.pageSize)); err != nil {
		return 0, 0, nil, err
	}
	flags, count = native.Uint16(head[8:]), native.Uint16(head[10:])
	over := uint64(native.Uint32(head[12:]))
	if id := native.Uint64(head); id != page || over >= w.pages-page {
		return 0, 0, nil, fmt.Errorf("its head has the number %d and %d overflow pages", id, over)
	}
	for i := page; i <= page+over; i++ {
		if w.seen[i] {
			return 0, 0, nil, fmt.Errorf("page %d is part of something else already", i)
		}
		w.seen[i] = true
	}
	if !whole(flags) {
		return flags, count, nil, nil
	}
	body = make([]byte, (over+1)*w.pageSize-pageHeader)
	_, err = w.file.ReadAt(body, int64(page*w.pageSize+pageHeader))
	return flags, count, body, err
}

// visit claims a page of a tree and adds the pages below it to pending.
func (w *walk) visit(at boltBranch) error {
	flags, count, body, err := w.claim(at.page, func(flags uint16) bool { return flags == flagBranch || flags == flagLeaf && at.top })
	switch {
	case err != nil:
		return err
	case flags != flagBranch && flags != flagLeaf:
		return fmt.Errorf("it is not part of a tree: flags %#x", flags)
	case flags == flagLeaf && !at.top:
		return nil
	case int(count)*pageElement > len(body) || flags == flagBranch && count == 0:
		return fmt.Errorf("%d elements in %d bytes", count, len(body))
	}
	for i := range int(count) {
		e := body[i*pageElement:]
		if flags == flagBranch {
			w.pending = append(w.pending, boltBranch{native.Uint64(e[8:]), at.top})
			continue
		}
		if native.Uint32(e)&elementBucket == 0 {
			continue
		}
		value := uint64(i*pageElement) + uint64(native.Uint32(e[4:])) + uint64(native.Uint32(e[8:]))
		if native.Uint32(e[12:]) < 16 || value+16 > uint64(len(body)) {
			return fmt.Errorf("bucket %d lies outside the page", i)
		}
		if root := native.Uint64(body[value:]); root != 0 { // otherwise the bucket is inside the page
			w.pending = append(w.pending, boltBranch{root, false})
		}
	}
	return nil
}

// checkFree compares the list of free pages with the pages of the trees.
func (w *walk) checkFree() error {
	flags, count, body, err := w.claim(w.free, func(flags uint16) bool { return flags == flagFreelist })
	if err != nil {
		return err
	}
	if flags != flagFreelist {
		return fmt.Errorf("it is not a free list: flags %#x", flags)
	}
	n := uint64(count)
	if count == math.MaxUint16 { // the first element holds the count
		n, body = native.Uint64(body), body[8:]
	}
	if n > uint64(len(body)/8) {
		return fmt.Errorf("%d elements in %d bytes", n, len(body))
	}
	for i := range n {
		page := native.Uint64(body[8*i:])
		if page >= w.pages || w.seen[page] {
			return fmt.Errorf("it names page %d of %d, which is in use", page, w.pages)
		}
		w.seen[page] = true
	}
	return nil
}
