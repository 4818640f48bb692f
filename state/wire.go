package state

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrDamaged is wrapped by every error about bytes that no build of any version
// would have written: a batch or snapshot that is cut short, altered or garbage.
var ErrDamaged = errors.New("damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// A record on the wire is a list of fields. A field is a tag (number × 2, plus 1
// for bytes) and a uvarint, or a uvarint length and that many bytes. Numbers may
// come in any order, and a reader skips those that it does not know: that is how
// an older and a newer node read each other's records.

// encoder appends records to a buffer.
type encoder struct {
	buf []byte
}

// uint writes a number, also when it is 0: for fields whose presence matters.
func (e *encoder) uint(num int, v uint64) {
	e.buf = binary.AppendUvarint(e.buf, uint64(num)<<1)
	e.buf = binary.AppendUvarint(e.buf, v)
}

// uintOpt writes a number unless it is 0, which an absent field means.
func (e *encoder) uintOpt(num int, v uint64) {
	if v != 0 {
		e.uint(num, v)
	}
}

func (e *encoder) bool(num int, v bool) {
	var u uint64
	if v {
		u = 1
	}
	e.uint(num, u)
}

func (e *encoder) boolOpt(num int, v bool) {
	if v {
		e.uint(num, 1)
	}
}

func (e *encoder) bytes(num int, v []byte) {
	e.buf = binary.AppendUvarint(e.buf, uint64(num)<<1|1)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(v)))
	e.buf = append(e.buf, v...)
}

func (e *encoder) bytesOpt(num int, v []byte) {
	if len(v) != 0 {
		e.bytes(num, v)
	}
}

func (e *encoder) string(num int, v string) {
	e.buf = binary.AppendUvarint(e.buf, uint64(num)<<1|1)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(v)))
	e.buf = append(e.buf, v...)
}

func (e *encoder) stringOpt(num int, v string) {
	if v != "" {
		e.string(num, v)
	}
}

// record writes a nested record as one field.
func (e *encoder) record(num int, write func(*encoder)) {
	var inner encoder
	write(&inner)
	e.bytes(num, inner.buf)
}

// field is one decoded field. raw aliases the buffer it was read from.
type field struct {
	num     int
	isBytes bool
	u       uint64
	raw     []byte
}

// uint gives the field's number.
func (f field) uint() (uint64, error) {
	if f.isBytes {
		return 0, damaged("field %d: bytes where a number belongs", f.num)
	}
	return f.u, nil
}

// bytes gives a copy of the field's bytes.
func (f field) bytes() ([]byte, error) {
	if !f.isBytes {
		return nil, damaged("field %d: a number where bytes belong", f.num)
	}
	if len(f.raw) == 0 {
		return nil, nil
	}
	return append(make([]byte, 0, len(f.raw)), f.raw...), nil
}

// setUint, setBool, setString and setBytes decode a field into a variable.
func setUint[T ~uint32 | ~uint64 | ~int | ~int64](f field, to *T) error {
	v, err := f.uint()
	*to = T(v)
	return err
}

func setBool(f field, to *bool) error {
	v, err := f.uint()
	*to = v != 0
	return err
}

func setString[T ~string](f field, to *T) error {
	if !f.isBytes {
		return damaged("field %d: a number where a string belongs", f.num)
	}
	*to = T(f.raw)
	return nil
}

func setBytes(f field, to *[]byte) (err error) {
	*to, err = f.bytes()
	return err
}

// setNew decodes a field into a new variable, for optional fields.
func setNew[T any](f field, to **T, set func(field, *T) error) error {
	*to = new(T)
	return set(f, *to)
}

// decoder reads the fields of one record.
type decoder struct {
	buf []byte
	err error
}

// next gives the next field; false at the end or at damage, which is in err.
func (d *decoder) next() (field, bool) {
	if d.err != nil || len(d.buf) == 0 {
		return field{}, false
	}
	tag, ok := d.uvarint()
	v, ok2 := d.uvarint()
	if !ok || !ok2 || tag>>1 > 1<<20 {
		d.err = damaged("bad field")
		return field{}, false
	}
	f := field{num: int(tag >> 1), isBytes: tag&1 == 1, u: v}
	if f.isBytes {
		if v > uint64(len(d.buf)) {
			d.err = damaged("field %d says %d bytes, %d are left", f.num, v, len(d.buf))
			return field{}, false
		}
		f.raw, d.buf = d.buf[:v], d.buf[v:]
	}
	return f, true
}

func (d *decoder) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(d.buf)
	if n <= 0 {
		return 0, false
	}
	d.buf = d.buf[n:]
	return v, true
}

// eachField calls take for every field of a record.
func eachField(buf []byte, take func(field) error) error {
	d := decoder{buf: buf}
	for f, ok := d.next(); ok; f, ok = d.next() {
		if err := take(f); err != nil {
			return err
		}
	}
	return d.err
}
