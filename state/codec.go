package state

import (
	"encoding/binary"
	"fmt"
)

// batchFormat is the first byte of every batch. A change of the framing of commands changes this byte.
const batchFormat = 1

const commandHeaderMin = 1 + 1 + 4 // kind, version, length of the body

// EncodeBatch encodes commands for one log entry. It fails for an unknown kind and for a missing payload.
//
// A batch is the format byte, the number of commands and the commands. A command is its kind, the version needed to
// apply it, the length of its body (4 bytes, little endian) and the body, which is one record.
func EncodeBatch(cmds []Command) ([]byte, error) {
	size := 8
	for i := range cmds {
		size += sizeHint(&cmds[i])
	}
	c := codec{buf: make([]byte, 0, size)}
	c.buf = append(c.buf, batchFormat)
	c.buf = binary.AppendUvarint(c.buf, uint64(len(cmds)))
	for i := range cmds {
		if err := encodeCommand(&c, &cmds[i]); err != nil {
			return nil, fmt.Errorf("encode command %d of %d: %w", i+1, len(cmds), err)
		}
	}
	return c.buf, nil
}

// sizeHint estimates the encoded size of a command, so that EncodeBatch usually allocates once.
func sizeHint(c *Command) int {
	n := 64
	if p := c.Put; p != nil {
		n += len(p.Key) + len(p.Value) + len(p.Session)
	}
	if c.Txn != nil {
		n += c.Txn.Size()
	}
	if c.Idempotency != nil {
		n += len(c.Idempotency.Key) + len(c.Idempotency.RequestHash)
	}
	if c.Audit != nil {
		n += c.Audit.size()
	}
	return n
}

func encodeCommand(c *codec, cmd *Command) error {
	if cmd.payload() == nil {
		return fmt.Errorf("kind %d is unknown or has no payload", cmd.Kind)
	}
	c.buf = binary.AppendUvarint(c.buf, uint64(cmd.Kind))
	c.buf = binary.AppendUvarint(c.buf, uint64(cmd.MinVersion()))
	c.putSized(cmd)
	return nil
}

// DecodeBatch decodes a batch of this or any other version. A command that this build cannot apply is an
// *UnknownCommandError. Any other error wraps ErrDamaged. The commands share no memory with b.
func DecodeBatch(b []byte) ([]Command, error) {
	if len(b) == 0 {
		return nil, damaged("empty batch")
	}
	if b[0] != batchFormat {
		return nil, damaged("batch format %d, this build reads %d", b[0], batchFormat)
	}
	c := codec{decoding: true, buf: b[1:]}
	count, ok := c.uvarint()
	if !ok || count > uint64(len(c.buf)/commandHeaderMin) {
		return nil, damaged("bad count of commands")
	}
	cmds := make([]Command, count)
	for i := range cmds {
		if err := decodeCommand(&c, &cmds[i]); err != nil {
			return nil, fmt.Errorf("decode command %d of %d: %w", i+1, count, err)
		}
	}
	if len(c.buf) != 0 {
		return nil, damaged("%d bytes after the last command", len(c.buf))
	}
	return cmds, nil
}

func decodeCommand(c *codec, cmd *Command) error {
	kind, ok1 := c.uvarint()
	version, ok2 := c.uvarint()
	if !ok1 || !ok2 || len(c.buf) < 4 || kind > 1<<31 || version > 1<<31 {
		return damaged("bad command header")
	}
	size := binary.LittleEndian.Uint32(c.buf)
	if uint64(size) > uint64(len(c.buf)-4) {
		return damaged("command says %d bytes, %d are left", size, len(c.buf)-4)
	}
	body, rest := c.buf[4:4+size], c.buf[4+size:]
	cmd.Kind = Kind(kind)
	if cmd.newPayload() == nil || uint32(version) > CommandVersion {
		return &UnknownCommandError{Kind: cmd.Kind, Version: uint32(version)}
	}
	err := c.decode(body, cmd)
	c.buf = rest
	return err
}
