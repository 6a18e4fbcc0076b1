pragma cache_size = -262144;
create table word (number integer primary key, text text, square real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 250000)
  insert into word select i, hex(i * 7919 % 65536) || printf('%060d', i), i * 1.0 * i from n;
create index by_text on word (text);
update word set square = square + 1 where number % 3 = 0;
delete from word where number % 11 = 0;
select count(*), sum(number), max(text) from word where text > '34';
select sum(a.number * b.number) from word a join word b on b.number = a.number % 1000 + 1;
pragma integrity_check;
