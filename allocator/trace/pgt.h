// The binary format of traces, `.pgt`: lossless, a few bytes per event.
//
// Layout. All numbers are little endian; a varint has seven bits a byte, low ones first, and the high bit set in all
// but the last byte; a signed varint is zigzag coded (0, -1, 1, -2, ... as 0, 1, 2, 3, ...); a text is a varint of its
// bytes and then those, UTF-8.
//
//   89 'P' 'G' 'T' 0d 0a 1a 0a      magic: detects transfers that change line ends or cut bit 8
//   u32 version                     1
//   sections, each
//     char[4] name                  in this order, each once: META STRM SCOP LOCA BLKS EVNT, then END with 0 bytes;
//                                   sections with other names are skipped
//     u32 reserved                  0
//     u64 bytes                     of the payload
//     u64 checksum                  of the payload: FNV-1a over its 8-byte words, the last one filled up with 0
//     payload
//   and no bytes after END.
//
//   META  device type u8 (0 cpu, 1 cuda, 2 sim), device index u8, start_us varint, lost varint, settings text
//   STRM  count varint, ids varint
//   SCOP  count varint, texts
//   LOCA  count varint, each: file text, function text, line varint
//   BLKS  count varint, each: address signed varint (from the end of the block before), size varint, state u8,
//         stream varint, epoch varint, window signed varint (difference), and for live and pending blocks
//         number varint, requested varint, category u8, scope varint
//   EVNT  count varint, each event as its difference from a reference: the last event of the same kind, for
//         free_completed the last free_requested, at first all zeros.
//           u8   kind (low four bits) | high four bits of the mask
//           u8   low eight bits of the mask
//           time      signed varint, from the event before
//           for each bit of the mask, lowest first, the difference of that field as a signed varint modulo 2^64:
//           allocation, address, size, ticket, location, scope, stream, slack, category, stage, flags
#pragma once

#include <string>
#include <string_view>

#include "allocator/trace/trace.h"

namespace poolgrad {

inline constexpr std::string_view pgt_magic{"\x89PGT\r\n\x1a\n", 8};

/// Lossless for any trace with indices in range.
std::string encode_pgt(const Trace& trace);
/// `path` is for error texts. Throws FileError that names the offset, for any bytes that encode_pgt() does not make.
Trace decode_pgt(std::string_view bytes, const std::string& path);

}  // namespace poolgrad
