package state

import (
	"encoding/binary"
	"fmt"

	"northstar/cluster"
)

// batchFormat is the first byte of every batch. The framing of commands inside
// a batch is fixed; should it ever change, this byte does.
const batchFormat = 1

// Fields that every kind has. Those of a kind's payload start at 16.
const (
	fieldNow            = 1
	fieldIdempotencyKey = 2
	fieldRequestHash    = 3
	fieldFenceRole      = 4
	fieldFenceToken     = 5
	fieldAudit          = 6
	firstOwnField       = 16
	commandHeaderMin    = 1 + 1 + 4 // kind, version, length of the body
)

// EncodeBatch encodes commands for one log entry. It fails for a command whose
// kind is not known or whose payload is missing.
//
// Batch: format byte, count, then per command its kind, the version needed to
// read it, the length of its body (4 bytes, little endian) and the body, which
// is one record.
func EncodeBatch(cmds []Command) ([]byte, error) {
	size := 8
	for i := range cmds {
		size += sizeHint(&cmds[i])
	}
	e := encoder{buf: make([]byte, 0, size)}
	e.buf = append(e.buf, batchFormat)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(cmds)))
	for i := range cmds {
		if err := encodeCommand(&e, &cmds[i]); err != nil {
			return nil, fmt.Errorf("encode command %d of %d: %w", i+1, len(cmds), err)
		}
	}
	return e.buf, nil
}

// sizeHint is the space that a command takes, exact enough to allocate once.
func sizeHint(c *Command) int {
	n := 48
	if c.Idempotency != nil {
		n += len(c.Idempotency.Key) + len(c.Idempotency.RequestHash) + 8
	}
	if c.Kind == KindPut && c.Put != nil {
		n += len(c.Put.Key) + len(c.Put.Value) + len(c.Put.Session) + 16
	}
	if c.Kind == KindDelete && c.Delete != nil {
		n += len(c.Delete.Key)
	}
	if c.Audit != nil {
		n += c.Audit.size() - auditOverhead + 48
	}
	return n
}

func encodeCommand(e *encoder, c *Command) error {
	p := c.payload()
	if p == nil {
		return fmt.Errorf("kind %d is not known or has no payload", c.Kind)
	}
	e.buf = binary.AppendUvarint(e.buf, uint64(c.Kind))
	e.buf = binary.AppendUvarint(e.buf, uint64(c.MinVersion()))
	at := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	e.uintOpt(fieldNow, uint64(c.Now))
	if c.Idempotency != nil {
		e.string(fieldIdempotencyKey, c.Idempotency.Key)
		e.bytesOpt(fieldRequestHash, c.Idempotency.RequestHash)
	}
	if c.Fence != nil {
		e.string(fieldFenceRole, c.Fence.Role)
		e.uintOpt(fieldFenceToken, c.Fence.Token)
	}
	if c.Audit != nil {
		e.record(fieldAudit, c.Audit.encode)
	}
	p.encode(e)
	binary.LittleEndian.PutUint32(e.buf[at:], uint32(len(e.buf)-at-4))
	return nil
}

// DecodeBatch decodes what EncodeBatch wrote, in this or any other version. A
// command that this build cannot apply is an *UnknownCommandError; anything
// else that is wrong wraps ErrDamaged. The commands share no memory with b.
func DecodeBatch(b []byte) ([]Command, error) {
	if len(b) == 0 {
		return nil, damaged("empty batch")
	}
	if b[0] != batchFormat {
		return nil, damaged("batch format %d, this build reads %d", b[0], batchFormat)
	}
	d := decoder{buf: b[1:]}
	count, ok := d.uvarint()
	if !ok || count > uint64(len(d.buf)/commandHeaderMin) {
		return nil, damaged("bad count of commands")
	}
	cmds := make([]Command, count)
	for i := range cmds {
		if err := decodeCommand(&d, &cmds[i]); err != nil {
			return nil, fmt.Errorf("decode command %d of %d: %w", i+1, count, err)
		}
	}
	if len(d.buf) != 0 {
		return nil, damaged("%d bytes after the last command", len(d.buf))
	}
	return cmds, nil
}

func decodeCommand(d *decoder, c *Command) error {
	kind, ok1 := d.uvarint()
	version, ok2 := d.uvarint()
	if !ok1 || !ok2 || len(d.buf) < 4 || kind > 1<<31 || version > 1<<31 {
		return damaged("bad command header")
	}
	size := binary.LittleEndian.Uint32(d.buf)
	if uint64(size) > uint64(len(d.buf)-4) {
		return damaged("command says %d bytes, %d are left", size, len(d.buf)-4)
	}
	body := decoder{buf: d.buf[4 : 4+size]}
	d.buf = d.buf[4+size:]

	c.Kind = Kind(kind)
	p := c.newPayload()
	if p == nil || uint32(version) > CommandVersion {
		return &UnknownCommandError{Kind: c.Kind, Version: uint32(version)}
	}
	for f, ok := body.next(); ok; f, ok = body.next() {
		var err error
		if f.num < firstOwnField {
			err = c.decodeCommon(f)
		} else {
			err = p.decode(f)
		}
		if err != nil {
			return err
		}
	}
	return body.err
}

func (c *Command) decodeCommon(f field) error {
	switch f.num {
	case fieldNow:
		return setUint(f, &c.Now)
	case fieldIdempotencyKey, fieldRequestHash:
		if c.Idempotency == nil {
			c.Idempotency = new(Idempotency)
		}
		if f.num == fieldIdempotencyKey {
			return setString(f, &c.Idempotency.Key)
		}
		return setBytes(f, &c.Idempotency.RequestHash)
	case fieldFenceRole, fieldFenceToken:
		if c.Fence == nil {
			c.Fence = new(FencingToken)
		}
		if f.num == fieldFenceRole {
			return setString(f, &c.Fence.Role)
		}
		return setUint(f, &c.Fence.Token)
	case fieldAudit:
		c.Audit = new(AuditRecord)
		return eachField(f.raw, c.Audit.decode)
	}
	return nil
}

func (p *Put) encode(e *encoder) {
	e.string(16, p.Key)
	e.bytesOpt(17, p.Value)
	if p.IfRevision != nil {
		e.uint(18, *p.IfRevision)
	}
	e.boolOpt(19, p.IfAbsent)
	e.stringOpt(20, p.Session)
	e.boolOpt(21, p.IfPresent)
}

func (p *Put) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.Key)
	case 17:
		return setBytes(f, &p.Value)
	case 18:
		return setNew(f, &p.IfRevision, setUint)
	case 19:
		return setBool(f, &p.IfAbsent)
	case 20:
		return setString(f, &p.Session)
	case 21:
		return setBool(f, &p.IfPresent)
	}
	return nil
}

func (p *Delete) encode(e *encoder) {
	e.string(16, p.Key)
	if p.IfRevision != nil {
		e.uint(17, *p.IfRevision)
	}
	e.boolOpt(18, p.IfPresent)
}

func (p *Delete) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.Key)
	case 17:
		return setNew(f, &p.IfRevision, setUint)
	case 18:
		return setBool(f, &p.IfPresent)
	}
	return nil
}

func (p *LeaderStart) encode(e *encoder) {
	e.uintOpt(16, p.Term)
	e.stringOpt(17, string(p.Node))
	e.stringOpt(18, p.Trigger)
	e.stringOpt(19, p.Reason)
	e.uintOpt(20, uint64(p.StartedAt))
	e.bytesOpt(21, p.Votes)
	e.stringOpt(22, p.Operator)
	e.uintOpt(23, uint64(p.LeaderlessAt))
}

func (p *LeaderStart) decode(f field) error {
	switch f.num {
	case 16:
		return setUint(f, &p.Term)
	case 17:
		return setString(f, &p.Node)
	case 18:
		return setString(f, &p.Trigger)
	case 19:
		return setString(f, &p.Reason)
	case 20:
		return setUint(f, &p.StartedAt)
	case 21:
		return setBytes(f, &p.Votes)
	case 22:
		return setString(f, &p.Operator)
	case 23:
		return setUint(f, &p.LeaderlessAt)
	}
	return nil
}

func (p *ClusterInit) encode(e *encoder) {
	e.string(16, p.ClusterID)
	e.uintOpt(17, p.Generation.Number)
	e.stringOpt(18, p.Generation.RecoveryID)
	for i := range p.Members {
		e.record(19, (*memberRecord)(&p.Members[i]).encode)
	}
	for _, id := range sortedKeys(p.Roster) {
		e.record(20, func(e *encoder) {
			e.string(16, string(id))
			e.string(17, p.Roster[id])
		})
	}
	e.boolOpt(21, p.AutoFailover)
}

func (p *ClusterInit) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.ClusterID)
	case 17:
		return setUint(f, &p.Generation.Number)
	case 18:
		return setString(f, &p.Generation.RecoveryID)
	case 19:
		var m cluster.Member
		if err := eachField(f.raw, (*memberRecord)(&m).decode); err != nil {
			return err
		}
		p.Members = append(p.Members, m)
	case 20:
		return p.decodeRoster(f)
	case 21:
		return setBool(f, &p.AutoFailover)
	}
	return nil
}

func (p *ClusterInit) decodeRoster(f field) error {
	var id cluster.NodeID
	var incarnation string
	err := eachField(f.raw, func(f field) error {
		switch f.num {
		case 16:
			return setString(f, &id)
		case 17:
			return setString(f, &incarnation)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if p.Roster == nil {
		p.Roster = make(map[cluster.NodeID]string)
	}
	p.Roster[id] = incarnation
	return nil
}

func (p *SettingsChange) encode(e *encoder) {
	e.boolOpt(16, p.AutoFailover)
	e.uintOpt(17, uint64(p.PausedUntil))
	e.stringOpt(18, p.Reason)
	e.stringOpt(19, p.Operator)
}

func (p *SettingsChange) decode(f field) error {
	switch f.num {
	case 16:
		return setBool(f, &p.AutoFailover)
	case 17:
		return setUint(f, &p.PausedUntil)
	case 18:
		return setString(f, &p.Reason)
	case 19:
		return setString(f, &p.Operator)
	}
	return nil
}
